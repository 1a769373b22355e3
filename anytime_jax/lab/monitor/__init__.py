"""Views of one run in a terminal, as it trains or later.

A run is read as a `run_snapshot`, which describes it in words. `follow` takes one every few
seconds, and `run_screen` shows it in a terminal, with a `terminal_chart`.
"""
