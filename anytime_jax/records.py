"""The records of a run: append-only JSON lines, a row for every step with something to say.

`RUN/records/0000.jsonl`, `0001.jsonl`, ...: every start of a run opens a new segment. Its first
line is a header that names the step it starts from, and it supersedes the rows that earlier
segments have after that step. So the records of a run that was killed and resumed read like those
of one that never was, timings apart.
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DIRECTORY = "records"

# Names whose values depend on the machine and the moment, not on the run.
TIMINGS = ("tokens_per_s", "mfu", "eval_seconds")


@dataclasses.dataclass(frozen=True)
class Row:
    """What was recorded at one step.

    Attributes:
      step: updates done.
      tokens: tokens seen.
      values: numbers by name, such as `train/loss`, `eval/f25/loss`, `lr`.
    """

    step: int
    tokens: int
    values: Mapping[str, float]


class RecordWriter:
    """Writes one segment of a run's records."""

    def __init__(self, run_dir: str | Path, from_step: int, header: Mapping[str, Any]):
        """Opens the next segment.

        Args:
          run_dir: the run's directory.
          from_step: the step this start of the run begins at; later rows are superseded.
          header: plain data for the segment's first line.
        """
        directory = Path(run_dir) / DIRECTORY
        directory.mkdir(parents=True, exist_ok=True)
        number = max((int(path.stem) for path in _segments(run_dir)), default=-1) + 1
        self._file = (directory / f"{number:04d}.jsonl").open("x", encoding="utf-8")
        self._step = from_step
        self._names: set[str] = set()
        self._write({"segment": number, "from_step": from_step, **header})

    def write(self, step: int, tokens: int, values: Mapping[str, float]) -> None:
        """Writes values of a step.

        Args:
          step: updates done; never less than that of the row before.
          tokens: tokens seen.
          values: numbers by name.

        Raises:
          ValueError: if a name was written at this step already, or the step lies in the past.
        """
        if step != self._step:
            self._names.clear()
        repeated = self._names.intersection(values)
        if step < self._step or repeated:
            what = f"{sorted(repeated)} again" if repeated else "into the past"
            raise ValueError(f"records: writing {what} at step {step}, after step {self._step}")
        self._step = step
        self._names.update(values)
        self._write({"step": step, "tokens": tokens, "values": dict(values)})

    def sync(self) -> None:
        """Makes everything written safe on disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the segment."""
        self._file.close()

    def _write(self, row: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()


def read_records(run_dir: str | Path) -> list[Row]:
    """Returns the rows of a run, one a step, in order, without what was superseded.

    A last line torn by a kill is passed over: its run did not get to save past it.
    """
    rows: dict[int, dict[str, Any]] = {}
    for segment in _segments(run_dir):
        header, *lines = _parse(segment) or [{"from_step": max(rows, default=0)}]
        rows = {step: row for step, row in rows.items() if step <= header["from_step"]}
        for line in lines:
            row = rows.setdefault(line["step"], {"tokens": line["tokens"], "values": {}})
            row["values"].update(line["values"])
    return [Row(step, row["tokens"], row["values"]) for step, row in sorted(rows.items())]


def _segments(run_dir: str | Path) -> list[Path]:
    found = (Path(run_dir) / DIRECTORY).glob("[0-9]*.jsonl")
    return sorted((path for path in found if path.stem.isdecimal()), key=lambda p: int(p.stem))


def _parse(segment: Path) -> list[dict[str, Any]]:
    lines = segment.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1]]  # what follows the last newline is torn
