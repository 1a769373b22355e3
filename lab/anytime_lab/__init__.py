"""Laboratory: studies of many runs, and views of one run, beside the trainer that it uses.

`study/` trains the runs of a study, and `studies/` has some as code. `paper/` and `leaderboard/`
compare their losses. `monitor/` shows one run as it trains, and `forecast/` its later losses.
`compilation/` compiles updates for absent accelerators, `theory/` computes exact risks of linear
regression, `width/` says what a larger model takes from a small run, `readout/` compares f25 with
other averages, and `optimizers/` has methods that were no better than simpler ones. `plugin.py`
lists the commands, and the folders of files that have a name.
"""
