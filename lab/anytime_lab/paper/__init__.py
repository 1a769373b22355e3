"""Figures and tables of the paper, from the records of a study, and its published losses.

`paper_items` makes each of them: it selects the numbers, which `report_figures` draws.
`report_page` writes all of them into one HTML page, with a PNG and a CSV file for each.
`published_gaps` splits the published gaps to the cosine into parts.
"""
