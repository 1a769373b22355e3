"""Configuration of a run: every setting, its checks, and points in a run.

`run_settings.py` declares each setting once, and `run_config.py` resolves them to a `Config`; begin
there. `settings_reader.py` reads settings into dataclasses, `other_names.py` says what an unknown
name may mean, `kinds.py` finds the dataclasses that a configuration names, `model.py` has the kinds
of decoders, and `mesh.py` the mesh of devices. `clock.py` has the time of a run, `stages.py` what
changes on the way, and `seesaw.py` a growing batch that takes the place of a decay.
`python_files.py` finds and executes the files in which configurations and studies are written.
"""
