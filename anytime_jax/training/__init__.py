"""Training: from a checked configuration to a trained run.

Begin with `loop.py`, a page. `plan.py` finds what a run needs, and `active_run.py` opens the run.

    plan      `preflight.py`, `run_data.py`, `microbatch_search.py`, `state_memory.py`; printed by
              `plan_summary.py`
    start     random weights (`step.py`), `branching.py`, `pretrained.py`
    update    `step.py`, which begins with an example; `objective.py` (the losses), `optimizer.py`,
              `bad_updates.py`
    events    `due_steps.py` says when a run saves and evaluates (`evaluator.py`)
    tasks     `task_evaluator.py` scores a run's weights in tasks of lm-evaluation-harness
              (`task_evaluation.py`), with the likelihoods and texts of `text_scorer.py`
    output    `recorder.py`, `metric_rows.py`, `trackers.py`, `progress.py`, `profiler.py`
    end       the stop of the plan, `signals.py`, `run_failures.py`
"""
