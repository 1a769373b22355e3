"""The width of a model: what a larger one takes from a small run whose learning rate was tuned.

The rules are those of `model.parametrization = "mup"`, and live where they act: initial weights and
logits in `models/decoder.py`, rates in the optimizers. `plan_command.py` says what to set, and why;
begin there. `benchmarks/coordinate_check.py` measures that the rules hold.
"""
