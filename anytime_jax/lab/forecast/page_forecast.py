"""Forecast on the page of one run, made in a thread while the page is read."""

import threading
import time
from html import escape

from anytime_jax import plotting
from anytime_jax.errors import InputError
from anytime_jax.lab.forecast import forecast_figure, forecast_report, forecast_subject
from anytime_jax.lab.forecast.forecast_subject import Subject
from anytime_jax.lab.forecast.run_forecast import RunForecast
from anytime_jax.lab.monitor import html_page
from anytime_jax.lab.monitor.run_snapshot import Snapshot

_REST = 30  # a forecast waits for so many times as long as the last one took: the training goes on
_GROWTH = 1.05  # of the steps, without an evaluation


class PageForecast:
    """The latest forecast of a run as HTML, which becomes newer as the run trains.

    Attributes:
      html: text, table and figure; empty before the first forecast.
      step: of the run when it was made.
    """

    def __init__(self) -> None:
        self.html, self.step = "", 0
        self._made: tuple[Subject, RunForecast] | None = None
        self._drawn: tuple[int, bytes] = 0, b""
        self._evaluated, self._next = -1, 0.0
        self._thread: threading.Thread | None = None

    def follow(self, snapshot: Snapshot) -> None:
        """Begins a forecast if the run has gone on since the last, and one may begin."""
        if not snapshot.evaluated or time.monotonic() < self._next:
            return
        step, evaluated = snapshot.rows[-1].step, snapshot.evaluated[-1][0].step
        if self._is_working() or (evaluated == self._evaluated and step < _GROWTH * self.step):
            return
        self._evaluated = evaluated
        self._thread = threading.Thread(target=self._make, args=(snapshot, step), daemon=True)
        self._thread.start()

    def draw(self) -> bytes | None:
        """Returns the figure as SVG; None if there is none. One thread may draw at a time."""
        made, step = self._made, self.step
        if made is not None and self._drawn[0] != step:
            self._drawn = step, plotting.to_svg(forecast_figure.draw_forecast(*made))
        return self._drawn[1] if made is not None else None

    def wait(self) -> None:
        """Returns when no forecast is being made."""
        if self._thread is not None:
            self._thread.join()

    def _is_working(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _make(self, snapshot: Snapshot, step: int) -> None:
        start = time.monotonic()
        html, made = _read(snapshot, step)
        self.html, self._made, self.step = html, made, step
        end = time.monotonic()
        self._next = end + _REST * (end - start)


def _read(snapshot: Snapshot, step: int) -> tuple[str, tuple[Subject, RunForecast] | None]:
    try:
        subject = forecast_subject.open_run(snapshot.run_dir)
        forecast = forecast_subject.forecast(subject)
        table = html_page.make_table(forecast_report.loss_cells(subject, forecast))
        lines = forecast_report.notes(subject, forecast)
    except Exception as error:  # the page has the rest of the run
        kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
        return f'<p class="state">{escape(f"No forecast: {kind}{error}")}</p>', None
    notes = "".join(f'<p class="state">{escape(line)}</p>\n' for line in lines)
    figure = (
        f'<img class="lines" src="forecast.svg?{step}" width="640" height="440" '
        'alt="Losses so far, and later ones with intervals">\n'
    )
    caption = '<p class="about">Forecast of the validation loss (nats per token)</p>'
    return f"{caption}\n{table}\n{notes}{figure}", (subject, forecast)
