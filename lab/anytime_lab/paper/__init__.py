"""Figures and tables of the paper, from the records of a study.

`paper_items` makes each of them: it selects the numbers, which `report_figures` draws.
`report_page` writes all of them into one HTML page, with a PNG and a CSV file for each.
"""
