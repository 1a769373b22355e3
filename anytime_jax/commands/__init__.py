"""Command line: one module for each command, named like it.

`dispatch.py` starts the command of a process; `command_line.py` parses its options and turns errors
into one line and an exit status. Configuration files come in through `config_file.py`, saved runs
through `run_options.py`. Begin with `evaluate.py`, a short command that uses all of these.
"""
