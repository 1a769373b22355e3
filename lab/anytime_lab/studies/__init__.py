"""Studies that come with the package: lists of named runs, and what to read in them.

Begin with `laptop`, the paper's experiment at a small scale. `leaderboard` compares optimizers, of
which `leaderboard_peaks` selects the peaks, and `widths` their best peaks at several widths;
`batches` has branches with larger batches; `paper_150m`, `paper_300m` and `paper_large_batch` are
the paper's own sweeps, made by `paper`.
"""
