"""Studies that come with the package: lists of named runs, and what to read in them.

Begin with `laptop`, the paper's experiment at a small scale. `leaderboard` compares optimizers,
with eight seeds at the peaks that `leaderboard_peaks` selects with two, and `widths` has best peaks
at several widths; `batches` and `batch_ramps` have larger and growing batches; `decay_seeds` has
weight decays; `finetunes` tunes the models of `finetune_starts` on a second text; `paper_150m`,
`paper_300m` and `paper_large_batch` are the paper's own sweeps, made by `paper`.
"""
