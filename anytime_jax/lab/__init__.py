"""Laboratory: what is done with runs beside training them; nothing outside imports it.

`study/` trains sets of runs, which `studies/` has as code; `paper/` and `leaderboard/` report them.
`monitor/` shows one run as it trains, `forecast/` its later losses. `compilation/` compiles updates
for absent accelerators, and `theory/` computes exact risks of linear regression. The command of
each package is its module "command".
"""
