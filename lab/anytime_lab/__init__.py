"""Laboratory: studies of many runs, and views of one run. No other package imports it.

`study/` trains the runs of a study, and `studies/` has some as code. `paper/` and `leaderboard/`
compare their losses. `monitor/` shows one run as it trains, and `forecast/` its later losses.
`compilation/` compiles updates for absent accelerators, `theory/` computes exact risks of linear
regression, and `optimizers/` has methods that were no better than simpler ones. The command of each
package is its module `NAME_command`; `report`, which draws on several packages, is a module here.
"""
