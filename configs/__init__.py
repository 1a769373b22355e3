"""Runs: one file each. `base.py` holds every setting."""
