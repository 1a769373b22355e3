"""Where a run computes: devices, processes and JAX's settings.

`sharding` places arrays on the device mesh (begin there), `processes` coordinates the processes of
a multi-host run, `runtime` sets what JAX reads before it looks for devices.
"""
