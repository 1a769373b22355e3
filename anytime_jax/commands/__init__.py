"""Command line: one module for each command, named like it.

Nine modules are no commands but what they share: `dispatch.py` runs a command by its name;
`command_line.py` parses its options and turns errors into one line and an exit status;
`config_file.py` loads configuration files and `config_help.py` lists them and their settings,
`run_options.py` loads saved runs; `follow.py` follows one that trains; `console.py` prints;
`page_server.py` serves pages to a browser; `standard_streams.py` sets up the standard streams and
ends the process. Begin with `evaluate.py`, a short command.
"""
