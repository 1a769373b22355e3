"""Views of one run, in progress or not.

A run is read as a `run_snapshot` and shown by `run_report`, live in a terminal by `run_screen`
(with `terminal_chart`) and in a browser by `run_page` (with `html_page` and `page_server`).
`follow` takes a snapshot every few seconds.
"""
