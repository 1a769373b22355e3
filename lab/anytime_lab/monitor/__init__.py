"""Views of one run in a terminal, during its training or later.

`run_snapshot` reads a run and describes it in words. `follow` takes a snapshot every few seconds,
and `run_screen` shows it in a terminal, with a `terminal_chart`.
"""
