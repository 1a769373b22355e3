"""Studies that come with the package: lists of named runs, and what to read in them.

Begin with `laptop`, the paper's experiment at a small scale. `leaderboard` compares optimizers,
and `widths` their best peaks at several widths; `leaderboard_peaks` selects peaks with two seeds,
and `leaderboard_seeds` repeats them with eight; `batches` has branches with larger batches;
`paper_150m`, `paper_300m` and `paper_large_batch` are the paper's own sweeps, made by `paper`.
"""
