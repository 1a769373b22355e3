"""Views of one run, during its training or later.

`run_snapshot` reads a run and describes it in words, and `follow` takes a snapshot every few
seconds.
"""
