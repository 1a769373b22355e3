"""Weights of a saved run: stored weights and post-hoc averages.

Start with `saved_run.open_saved_run` (a run at one of its checkpoints), then `weight_names.parse`
(`f25`, `f=35`, `merge:5` as a weighted sum of stored weights) and `saved_run.load_weights`.
`post_hoc_averages` finds the weighted sum that comes nearest to an average. `saved_run_evaluators`
computes the losses of weights, `generation` generates text, and `checkpoint_scorer` scores tasks
and adds the scores to the records of a run.
"""
