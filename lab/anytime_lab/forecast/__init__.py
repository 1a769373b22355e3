"""Forecast of a run's losses from its losses so far: later, after a decay, or through averages.

Begin with `run_forecast`, which makes the forecast. `functional_law` is the law of the loss, and
`functional_law_fit` fits it with prior knowledge (`prior`) to a `loss_history`, which `loss_csv`
reads from other trackers' logs. `update_blocks` and `linear_modes` sum over the updates.
`run_loss_history` reads the losses of a run of this package, `forecast_subject` forecasts them with
prior knowledge from a study (`study_prior`), and `forecast_report` and `forecast_figure` show the
forecast.
"""
