"""Records of a run: append-only JSON lines, one row for every step with metrics.

Every start opens a new segment, `RUN/records/0000.jsonl`, `0001.jsonl`, ... Its first line is a
header with the format, the version of the code and the step it starts from; it supersedes rows of
earlier segments after that step. Except for timings, a run that was killed and resumed therefore
has the same records as an uninterrupted one. A long segment is continued in the next, since a
bucket stores a file anew when it grows.

Reading never fails on the content of a file: a segment is read as far as it is valid.
"""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from anytime_jax import __version__
from anytime_jax.storage.files import is_regular_file
from anytime_jax.storage.growing_files import GrowingFile, create_growing_file
from anytime_jax.storage.json_files import parse_json
from anytime_jax.storage.paths import storage_path

DIRECTORY = "records"
TASKS = "tasks/"  # prefix of the names of scores: tasks/WEIGHTS/TASK/METRIC
FORMAT_VERSION = 1
_SEGMENT_BYTES = 1_000_000
# Values that differ between equal runs.
TIMINGS = ("tokens_per_s", "mfu", "eval_seconds")


@dataclasses.dataclass(frozen=True)
class Row:
    """Values recorded at one step, with names such as `train/loss`, `eval/f25/loss` or `lr`.

    `step` counts the updates done and `tokens` the tokens seen.
    """

    step: int
    tokens: int
    values: Mapping[str, float]


class RecordWriter:
    """Writer of one segment of the records."""

    def __init__(self, run_dir: str | Path, from_step: int, header: Mapping[str, Any]):
        """Opens the next segment, which supersedes rows after `from_step` in earlier ones."""
        self._directory, self._header = storage_path(run_dir) / DIRECTORY, dict(header)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._number = max((int(path.stem) for path in segments(run_dir)), default=-1) + 1
        self._step = from_step
        self._names: set[str] = set()  # names written at that step
        steps = [row.step for row in read_records(run_dir) if row.step <= from_step]
        self._last_row, self._rows = max(steps, default=-1), len(steps)
        self._file = self._create_segment()

    def write(self, step: int, tokens: int, values: Mapping[str, float]) -> None:
        """Appends values of a step.

        Raises a ValueError if a name was already written at this step, or if the step decreases.
        """
        if step != self._step:
            self._names.clear()
        repeated = self._names.intersection(values)
        if step < self._step or repeated:
            problem = f"{sorted(repeated)} again" if repeated else "into the past"
            raise ValueError(f"records: writing {problem} at step {step}, after step {self._step}")
        self._step = step
        self._names.update(values)
        self._rows += step > self._last_row
        self._last_row = step
        self.amend(step, tokens, values)

    def amend(self, step: int, tokens: int, values: Mapping[str, float]) -> None:
        """Adds values to a row that may be an earlier one, in the place of any of these names."""
        if self._file.size > _SEGMENT_BYTES:
            self._file.close()
            self._number += 1
            self._file = self._create_segment()
        row = {"step": step, "tokens": tokens, "values": dict(values)}
        self._file.write(json.dumps(row) + "\n")

    def rows_before(self, step: int) -> int:
        """Returns the number of rows before the current step, in all segments."""
        return self._rows - (self._last_row == step)

    def sync(self) -> None:
        """Returns once everything written is stored."""
        self._file.sync()

    def close(self) -> None:
        """Closes the segment."""
        self._file.close()

    def _create_segment(self) -> GrowingFile:
        fields = {"segment": self._number, "from_step": self._step, **self._header}
        text = json.dumps({"format_version": FORMAT_VERSION, **fields}) + "\n"
        return create_growing_file(self._directory / f"{self._number:04d}.jsonl", text)


def read_records(run_dir: str | Path, warn: Callable[[str], None] = lambda text: None) -> list[Row]:
    """Returns the rows of a run that were not superseded, one per step, in order.

    `warn` is called with one line for every segment that another version wrote or that is not valid
    to its end. A last line that a kill truncated loses nothing, as no checkpoint was saved after
    it.
    """
    rows: dict[int, Row] = {}
    for segment in segments(run_dir):
        for line in _parse(segment, warn):
            # The first item is the header's step; without a header, a segment supersedes nothing.
            if isinstance(line, int):
                rows = {step: row for step, row in rows.items() if step <= line}
                continue
            earlier = rows.get(line.step)
            values = {**earlier.values, **line.values} if earlier else line.values
            rows[line.step] = Row(line.step, line.tokens, values)
    return [row for _, row in sorted(rows.items())]


def count_before(rows: Sequence[Row], step: int) -> int:
    """Returns the number of rows before a step."""
    return sum(row.step < step for row in rows)


def describe_missing(found: int, meta: Mapping[str, Any]) -> str | None:
    """Says how many rows before a checkpoint are missing, if fewer are found than it counts.

    Checkpoints of earlier versions do not count them.
    """
    step, expected = meta["step"], meta.get("rows", 0)
    if found >= expected:
        return None
    return f"{expected - found:,} of the {expected:,} rows of records before step {step:,} are lost"


def is_evaluated(run_dir: str | Path, step: int) -> bool:
    """Returns whether the records of a run contain an evaluation at a step."""
    rows = [row for row in read_records(run_dir) if row.step == step]
    return any(name.startswith("eval/") for row in rows for name in row.values)


def segments(run_dir: str | Path) -> list[Path]:
    """Returns the segments of a run in order."""
    files = (storage_path(run_dir) / DIRECTORY).glob("[0-9]*.jsonl")
    return sorted((path for path in files if path.stem.isdecimal()), key=lambda p: int(p.stem))


def read_starts(run_dir: str | Path) -> list[dict[str, Any]]:
    """Returns the header of the first segment of every start, in order, as far as it is valid.

    It has the step "from_step", and what the start recorded, such as "devices".
    """
    starts: dict[Any, dict[str, Any]] = {}
    for segment in filter(is_regular_file, segments(run_dir)):
        with contextlib.suppress(ValueError, TypeError):
            header = dict(parse_json(segment.read_bytes().partition(b"\n")[0]))
            starts.setdefault(header.get("started", segment), header)
    return [x for x in starts.values() if type(x.get("from_step")) is int]


def _parse(segment: Path, warn: Callable[[str], None]) -> Iterator[int | Row]:
    """Yields the step from which a segment starts, then its rows, as far as they are valid."""
    if not is_regular_file(segment):  # reading a pipe could wait forever
        warn(f"{segment}: it is not a regular file")
        return
    complete, _, torn = segment.read_bytes().rpartition(b"\n")
    if torn:
        warn(f"{segment}: its last line is torn, as by a kill; no row of a saved step is lost")
    for number, line in enumerate(complete.split(b"\n") if complete else [], start=1):
        try:
            fields = parse_json(line)
            if number == 1:
                if (version := fields.get("format_version")) != FORMAT_VERSION:
                    raise ValueError(f"format version {version}, this is {FORMAT_VERSION}")
                if (written_by := fields.get("version", __version__)) != __version__:
                    warn(f"{segment}: written by version {written_by}, this is {__version__}")
                yield _count(fields["from_step"])
                continue
            values = fields["values"]
            if type(values) is not dict:
                raise ValueError("values is not an object")
            if any(type(x) not in (int, float) for x in values.values()):
                raise ValueError("a value is not a number")
            yield Row(_count(fields["step"]), _count(fields["tokens"]), values)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            warn(f"{segment}: read up to line {number}, which is not a record ({error!r})")
            return


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value
