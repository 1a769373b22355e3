"""Configuration of a run: every setting, its checks, and points in a run.

`schema.py` declares each setting once (`model.py` and `optimization.py` hold two of its groups) and
builds a `Config`; begin there. `fields.py` reads and checks declared settings. `clock.py` converts
between steps, tokens and Chinchilla multiples. `python_files.py` finds and executes the files in
which configurations and studies are written.
"""
