"""The records of a run: append-only JSON lines, a row for every step with something to say.

`RUN/records/0000.jsonl`, `0001.jsonl`, ...: every start of a run opens a new segment. Its first
line is a header that names the format, the code's version and the step it starts from, and it
supersedes the rows that earlier segments have after that step. So the records of a run that was
killed and resumed read like those of one that never was, timings apart.

Reading never fails on what a file holds: it goes as far as a segment is good, and says so.
"""

import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from anytime_jax import __version__

DIRECTORY = "records"
FORMAT_VERSION = 1

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
        head = {"format_version": FORMAT_VERSION, "segment": number, "from_step": from_step}
        self._write({**head, **header})

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


def read_records(
    run_dir: str | Path, remark: Callable[[str], None] = lambda text: None
) -> list[Row]:
    """Returns the rows of a run, one a step, in order, without what was superseded.

    Args:
      run_dir: the run's directory.
      remark: is told of every segment that another version wrote, or that could not be read to its
        end, one line each. A last line torn by a kill loses nothing: its run did not save past it.
    """
    rows: dict[int, Row] = {}
    for segment in _segments(run_dir):
        lines = _parse(segment, remark)
        from_step = next(lines, None)
        if not isinstance(from_step, int):
            continue  # killed while it wrote its head, or of no use: it has superseded nothing
        rows = {step: row for step, row in rows.items() if step <= from_step}
        for line in lines:
            assert isinstance(line, Row)
            earlier = rows.get(line.step)
            values = {**earlier.values, **line.values} if earlier else line.values
            rows[line.step] = Row(line.step, line.tokens, values)
    return [row for _, row in sorted(rows.items())]


def is_evaluated(run_dir: str | Path, step: int) -> bool:
    """Whether the records of a run hold an evaluation of a step."""
    rows = [row for row in read_records(run_dir) if row.step == step]
    return any(name.startswith("eval/") for row in rows for name in row.values)


def _segments(run_dir: str | Path) -> list[Path]:
    found = (Path(run_dir) / DIRECTORY).glob("[0-9]*.jsonl")
    return sorted((path for path in found if path.stem.isdecimal()), key=lambda p: int(p.stem))


def _parse(segment: Path, remark: Callable[[str], None]) -> Iterator[int | Row]:
    """Yields the step a segment starts from, then its rows, as far as they are good."""
    whole, _, torn = segment.read_bytes().rpartition(b"\n")
    if torn:
        remark(f"{segment}: its last line is torn, as a kill leaves it; nothing saved is lost")
    for number, line in enumerate(whole.split(b"\n") if whole else [], start=1):
        try:
            given = json.loads(line)
            if number == 1:
                version = given.get("format_version")
                if version != FORMAT_VERSION:
                    raise ValueError(f"format version {version}, this is {FORMAT_VERSION}")
                if (written_by := given.get("version", __version__)) != __version__:
                    remark(f"{segment}: written by version {written_by}, this is {__version__}")
                yield _whole(given["from_step"])
                continue
            values = {str(name): _number(value) for name, value in given["values"].items()}
            yield Row(_whole(given["step"]), _whole(given["tokens"]), values)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            remark(f"{segment}: read up to line {number}, which is no record ({error!r})")
            return


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise ValueError(f"{value!r} is no number")
    return value
