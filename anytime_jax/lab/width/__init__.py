"""The width of a model: what a larger one takes from a small run, and the check that it may.

Begin with `plan_command.py`; `coordinate_check.py` measures how activations and
their changes depend on the width.
"""
