"""Command line: one module for each command, named like it; the laboratory has its own.

Eleven modules are shared by the commands: `dispatch.py` runs a command by its name;
`argument_parser.py` parses its options; `exit_status.py` turns errors into one line and a status;
`config_file.py` loads configuration files and `config_help.py` lists them and their settings;
`run_options.py` has the options of saved runs; `rich_console.py` prints, and `loss_table.py` and
`loss_figure.py` show the losses of a run; `standard_streams.py` sets up the standard streams and
ends the process, `interrupts.py` ends one that Ctrl-C interrupts. Begin with `evaluate.py`, a short
command.
"""
