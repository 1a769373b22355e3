"""Configuration of a run: every setting, its checks, and points in a run.

Begin with `run_settings.py`, which declares each setting once, and `run_config.py`, which resolves
the settings to a `Config`. `settings_reader.py` reads settings into dataclasses, and
`other_names.py` says what an unknown name may mean. `kinds.py` finds the dataclasses that a
configuration names; `model.py` has the kinds of decoders, and `mesh.py` the mesh of devices.
`clock.py` has the time of a run, and `stages.py` what changes in the course of a run.
`python_files.py` finds and executes the files in which configurations and studies are written.
"""
