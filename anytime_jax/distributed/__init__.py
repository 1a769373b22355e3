"""The device mesh, the processes of a run, and runtime settings."""
