"""Command line: one module for each command, named like it.

Four modules are no commands but what they share: `command_line.py` lists the commands, parses their
options and turns errors into one line and an exit status; `config_file.py` loads configuration
files, `run_options.py` saved runs; `console.py` prints. Begin with `evaluate.py`, a short command.
"""
