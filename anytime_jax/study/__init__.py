"""Studies: sets of runs written as code, trained together, and reported from their records.

Start with `plan`, which study files use. `tasks`, `local_executor` and `slurm_scripts` train them.
`results` reads their records, `selection` selects settings as the paper does, and `paper_items`
makes each figure and table (`report_figures`, `report_page`). A single run is read as a
`run_snapshot` and shown by `run_report`, live in a terminal by `run_screen` and in a browser by
`run_page`. `forecast_subject` forecasts it, as text (`forecast_report`, `forecast_advice`) and as a
figure (`forecast_figure`).
"""
