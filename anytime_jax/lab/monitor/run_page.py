"""Page of one run for a browser, made anew from its records when they change."""

import base64
import hashlib
import threading
from html import escape
from pathlib import Path
from typing import Protocol

from anytime_jax import plotting
from anytime_jax.checkpoints import curves
from anytime_jax.checkpoints.recorded_losses import loss_cells, weight_labels
from anytime_jax.lab.monitor import html_page, run_snapshot
from anytime_jax.lab.monitor.run_snapshot import Snapshot

_ROWS = 100  # evaluations in the table

# Replaces what differs in the newer page, and images once they are loaded: nothing flickers, and
# the page stays where it was scrolled to.
SCRIPT = """
async function update() {
  const problem = document.getElementById("problem");
  try {
    const response = await fetch("/", {cache: "no-store"});
    const text = await response.text();
    if (!response.ok) throw new Error(text);
    const page = new DOMParser().parseFromString(text, "text/html");
    const parts = [...page.querySelectorAll("[data-live]")];
    const changed = parts.filter(x => document.getElementById(x.id).innerHTML !== x.innerHTML);
    const images = changed.flatMap(x => [...x.querySelectorAll("img")]);
    await Promise.allSettled(images.map(image => {
      const loaded = new Image();
      loaded.src = image.getAttribute("src");
      return loaded.decode();
    }));
    for (const x of changed) document.getElementById(x.id).replaceChildren(...x.childNodes);
    problem.textContent = "";
  } catch (error) {
    problem.textContent = `Not up to date, trying again: ${error.message}`;
  }
}
async function follow() {
  if (!document.hidden) await update();
  setTimeout(follow, 3000);
}
setTimeout(follow, 3000);
"""


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# Everything is from the server of the page.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    f"img-src 'self'; connect-src 'self'; style-src {_hash(html_page.STYLE)}; "
    f"script-src {_hash(SCRIPT)}"
)


_FIGURES = {
    "losses": (curves.draw_losses, "Training and validation loss against training tokens"),
    "gains": (curves.draw_gains, "Loss of each average minus that of the live weights"),
}


class Forecast(Protocol):
    """Part of the page about the losses to come."""

    html: str

    def follow(self, snapshot: Snapshot) -> None:
        """Makes the part anew if the run is much longer."""

    def draw(self) -> bytes | None:
        """Returns the figure as SVG, or None if there is none."""


class RunPage:
    """Page of one run, with its figures; threads may share it."""

    def __init__(self, run_dir: str | Path, forecast: Forecast):
        """Reads the run; raises an InputError if `run_dir` is not a run directory."""
        self._snapshot = run_snapshot.take(run_dir)
        self._drawn: dict[str, tuple[str, bytes]] = {}  # version and content of a figure
        self._forecast = forecast
        self._lock = threading.Lock()  # Matplotlib draws in one thread at a time

    def read(self, name: str) -> tuple[str, bytes] | None:
        """Returns media type and content of a file, None if there is none of that name.

        The page is the file "". Raises an InputError if the run has gone.
        """
        with self._lock:
            self._snapshot = run_snapshot.take(self._snapshot.run_dir, self._snapshot)
            if name == "":
                self._forecast.follow(self._snapshot)
                page = _make_page(self._snapshot, self._forecast.html)
                return "text/html; charset=utf-8", page.encode()
            figure = name.removesuffix(".svg")
            if name == "forecast.svg":
                drawn = self._forecast.draw()
                return ("image/svg+xml", drawn) if drawn is not None else None
            if figure == name or figure not in _FIGURES or not self._snapshot.evaluated:
                return None
            return "image/svg+xml", self._draw(figure)

    def _draw(self, name: str) -> bytes:
        version = _figure_version(self._snapshot)
        if name not in self._drawn or self._drawn[name][0] != version:
            figure = _FIGURES[name][0](self._snapshot.rows)
            self._drawn[name] = version, plotting.to_svg(figure)
        return self._drawn[name][1]


def _figure_version(snapshot: Snapshot) -> str:
    """What changes at every evaluation, and twice a minute while the run trains.

    A figure takes half a second of a processor, which the training may need.
    """
    return f"{snapshot.evaluated[-1][0].step}-{int(snapshot.change[0] // 30)}"


def _make_page(snapshot: Snapshot, forecast: str) -> str:
    lines = [
        snapshot.describe_position(),
        snapshot.describe_process(),
        snapshot.describe_training() or "",
        snapshot.describe_best() if snapshot.rows else "",
    ]
    state = "".join(f'<p class="state">{escape(line)}</p>\n' for line in lines if line)
    state += "".join(f'<p class="note">{escape(line)}</p>\n' for line in snapshot.warnings)
    figures, table = "", ""
    if evaluated := snapshot.evaluated:
        version = _figure_version(snapshot)
        for name, (_, text) in _FIGURES.items():
            figures += (
                f'<img class="lines" src="{name}.svg?{version}" width="640" height="440" '
                f'alt="{escape(f"{text}. {snapshot.describe_best()}")}">\n'
            )
        header, *cells = loss_cells(
            snapshot.clock, evaluated[: -_ROWS - 1 : -1], weight_labels(evaluated)
        )
        caption = "Validation loss (nats per token), * the best of each row, the latest first"
        table = f'<p class="about">{caption}</p>\n{html_page.make_table([header, *cells])}\n'
    body = (
        '<p id="problem" class="about" role="status"></p>\n'
        f'<div id="state" data-live>\n{state}</div>\n'
        f'<div id="figures" class="figures" data-live>\n{figures}</div>\n'
        f'<div id="forecast" class="table" data-live>\n{forecast}</div>\n'
        f'<div id="evaluations" class="table" data-live>\n{table}</div>\n'
        f"<script>{SCRIPT}</script>\n"
    )
    return html_page.make_page(snapshot.name, body)
