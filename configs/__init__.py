"""Configurations: one file a run; `base.py` has every setting."""
