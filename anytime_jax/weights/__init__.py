"""Weights of a saved run: stored weights and post-hoc averages.

Start with `saved_run.open_saved_run` (a run at one of its checkpoints), then `weight_names.parse`
(`f25`, `f=35`, `merge:5` as a weighted sum of stored weights) and `saved_run.load_weights`.
`post_hoc_averages` finds the weighted sum that comes nearest to an average. `saved_run_evaluators`
computes the losses of weights, and `generation` generates text. `task_evaluation` scores tasks of
lm-evaluation-harness, with the likelihoods and continuations of `text_scorer`; `checkpoint_scorer`
adds their scores to the records of a run.
"""
