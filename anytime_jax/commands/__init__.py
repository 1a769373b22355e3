"""Command line: one module for each command, named like it.

`dispatch.py` selects the command; `command_line.py` parses its options and turns errors into one
line and an exit status. `config_file.py` loads configuration files, `run_options.py` saved runs.
Begin with `evaluate.py`, a short command.
"""
