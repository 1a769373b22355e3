"""Training: from a checked configuration to a trained run.

Begin with `loop.py`, a page. `plan.py` finds what a run needs, and `active_run.py` opens it:
`step.py` is the update on the device, with `objective.py` (the losses), `optimizer.py` and
`bad_updates.py`. `preflight.py`,
`run_data.py`, `microbatch_search.py` and `state_memory.py` serve the plan, and `plan_summary.py`
prints it; `branching.py` and `pretrained.py` are other starts than random weights. `due_steps.py`
says when a run saves and evaluates; `recorder.py`, `metric_rows.py`, `trackers.py`, `evaluator.py`
and `progress.py` are the output of the loop, `profiler.py` traces it, `signals.py` and
`run_failures.py` are its other ends.
"""
