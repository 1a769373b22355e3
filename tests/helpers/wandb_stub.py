"""Stands in for the client of Weights & Biases, with its rule of steps.

As wandb 0.31 does, it drops a row below the current step, and a row without a step is of the
current one and ends it. A resumed run begins at the step after its last. Every row is a line of
`DIRECTORY/wandb_rows.jsonl`, which outlives a killed process.
"""

import json
import pathlib


class Run:
    """A run in a directory."""

    def __init__(self, directory: str):
        """Resumes the run if the directory has rows."""
        self._file = pathlib.Path(directory) / "wandb_rows.jsonl"
        steps = [row["_step"] for row in read_rows(directory)]
        self._step = max(steps, default=-1) + 1

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        """Takes the axis of a chart, which changes no row."""

    def log(self, values: dict, step: int | None = None) -> None:
        """Writes a row, if its step is not below the current one."""
        if step is not None and step < self._step:
            return
        self._step = self._step if step is None else step
        with self._file.open("a") as file:
            file.write(json.dumps({**values, "_step": self._step}) + "\n")
        self._step += step is None

    def finish(self) -> None:
        """Ends the run."""


def init(**options) -> Run:
    """Opens the run of a directory."""
    return Run(options["dir"])


def read_rows(directory: str | pathlib.Path) -> list[dict]:
    """Returns the rows that arrived, in their order, without one that is being written."""
    file = pathlib.Path(directory) / "wandb_rows.jsonl"
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return [json.loads(line) for line in lines]
