"""Forecast of a run's losses: later, after a decay, or through averages, from its losses so far.

Begin with `run_forecast`, which answers what a user asks. `functional_law` is the law of the loss,
and `functional_law_fit` fits it with prior knowledge (`prior`). `loss_history` is what is fitted,
`loss_csv` reads it from other trackers.
What the updates do is summed in `update_blocks` and `linear_modes`. Of a run of ours,
`run_loss_history` reads the losses, `forecast_subject` forecasts them, with prior knowledge from a
study (`study_prior`), and `forecast_report` and `forecast_figure` show the forecast.
"""
