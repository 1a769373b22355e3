"""Training: from a checked configuration and a dataset to a trained run.

Begin with `trainer.py`, the loop; `training_run.py` is one run in it, `step.py` the update on the
device with `optimizer.py` and `bad_updates.py`; `loop_program.py` is what the loop calls of it.
`signals.py`, `startup.py`, `preflight.py` and `memory.py` come before the first update;
`branching.py` and `pretrained.py` are other starts than random weights. `batches.py`, `metrics.py`,
`evaluator.py` and `progress.py` are input and output of the loop.
"""
