"""Command line: one module for each command, named like it; the laboratory has its own.

Nine modules are shared by the commands: `dispatch.py` runs a command by its name;
`argument_parser.py` parses its options; `exit_status.py` turns errors into one line and a status;
`config_file.py` loads configuration files and `config_help.py` lists them and their settings,
`run_options.py` has the options of saved runs; `rich_console.py` prints; `standard_streams.py` sets
up the standard streams and ends the process, `interrupts.py` ends one that Ctrl-C interrupts. Begin
with `evaluate.py`, a short command.
"""
