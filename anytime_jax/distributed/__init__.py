"""Devices, processes and JAX settings of a run.

Begin with `sharding`, which places arrays on the device mesh. `processes` coordinates the processes
of a multi-host run, `jax_settings` makes the settings that JAX reads before it looks for devices,
and `xla_settings` has the XLA settings for each platform. `device_specs` has the figures of
devices, `lost_process_exit` ends a run that has lost a process, and `silence` one that is stuck.
"""
