"""Leaderboard of a study: optimizers, schedules and read-outs against the tuned cosine.

`leaderboard` computes the entries, each with the best settings and the spread of seeds, and
`leaderboard_markdown` writes them as tables into a Markdown page, with every setting that was tried
in a CSV file.
"""
