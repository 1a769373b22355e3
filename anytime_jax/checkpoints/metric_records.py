"""Records of a run: JSON lines, one row for every step with metrics.

Every start opens a new segment, `RUN/records/0000.jsonl`, `0001.jsonl`, ... The first line of a
segment is a header with the format, the version of the code and the step from which the start goes
on. A segment supersedes the rows of earlier segments after this step. So a run that was killed and
resumed has the same records as an uninterrupted run, except for timings.

Amendments, such as scores of tasks, are segments as well, which supersede nothing:
`0001-ID.jsonl`. Any process may write one at any time, also while the run is trained.

On a disk, rows are appended to the segment. In a bucket nothing can be appended. There, every
`sync` writes the rows since the last `sync` as a file of its own, which continues the file before:
`0001-START-0000.jsonl`, `0001-START-0001.jsonl`, ... with the id of the start.

A line also has the seconds of its start so far, by what they went into. Lines without values have
these seconds alone, and are no rows.

Reading never fails on the content of a file: a segment is read as far as it is valid.
"""

import contextlib
import dataclasses
import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from anytime_jax import __version__
from anytime_jax.checkpoints import run_json
from anytime_jax.storage.atomic import atomic_write
from anytime_jax.storage.files import can_append, read_files
from anytime_jax.storage.json_files import parse_json
from anytime_jax.storage.paths import storage_path

DIRECTORY = "records"
LAYERS = "layers"  # first part of the names of measures: layers/LAYER/MEASURE
TASKS = "tasks/"  # prefix of the names of scores: tasks/WEIGHTS/TASK/METRIC
# eval/LABEL/NAME of an average that began late: the step at which it started, and its kernel error.
SINCE, KERNEL_ERROR = "since", "kernel_error"
FORMAT_VERSION = 1
# Values that differ between equal runs.
TIMINGS = ("tokens_per_s", "mfu", "eval_seconds", "tasks_seconds")


@dataclasses.dataclass(frozen=True)
class Row:
    """Values recorded at one step, with names such as `train/loss`, `eval/f25/loss` or `lr`.

    `step` counts the updates done and `tokens` the tokens seen.
    """

    step: int
    tokens: int
    values: Mapping[str, float]


class RecordWriter:
    """Writer of the segment of one start, or of amendments."""

    def __init__(
        self,
        run_dir: str | Path,
        from_step: int | None,
        header: Mapping[str, Any],
        confirm: Callable[[], None] = lambda: None,
        seconds: Callable[[], Mapping[str, float]] = dict,
    ):
        """Opens the next segment.

        Args:
          run_dir: directory of the run.
          from_step: rows of earlier segments after this step are superseded. With None, no rows are
            superseded, and the segment can only `amend`.
          header: further entries of the header, such as the id of the start as "start".
          confirm: raises an error if the start may not write any more; called before each write to
            a bucket.
          seconds: returns the seconds of the start so far, by what they went into.
        """
        self._seconds = seconds
        directory = storage_path(run_dir) / DIRECTORY
        directory.mkdir(parents=True, exist_ok=True)
        number = max((_number(path) for path in segments(run_dir)), default=-1) + 1
        self._step = -1 if from_step is None else from_step
        self._names: set[str] = set()  # names written at that step
        steps = [row.step for row in read_records(run_dir) if row.step <= self._step]
        self._last_row, self._rows = max(steps, default=-1), len(steps)
        about = {"format_version": FORMAT_VERSION, "from_step": from_step}
        about |= {"version": __version__, **header}
        if can_append(directory):
            # A start may choose the same number at the same time as an amendment.
            name = f"{number:04d}" if from_step is not None else f"{number:04d}-{uuid.uuid4().hex}"
            self._segment = _AppendedSegment(directory / f"{name}.jsonl", about)
        else:
            self._segment = _WrittenSegment(directory, number, about, confirm)

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
        """Adds values to a row, which may be an earlier one; replaces values of the same names.

        Without values, only the seconds of the start are stored.
        """
        line: dict[str, Any] = {"step": step, "tokens": tokens, "values": dict(values)}
        if seconds := {name: round(x, 3) for name, x in self._seconds().items()}:
            line["seconds"] = seconds
        self._segment.add(line)

    def rows_before(self, step: int) -> int:
        """Returns the number of rows before the current step, in all segments."""
        return self._rows - (self._last_row == step)

    def sync(self) -> None:
        """Returns once everything written is stored."""
        self._segment.sync()

    def close(self) -> None:
        """Stores all rows that are not stored yet and closes the segment."""
        self._segment.close()


class _AppendedSegment:
    """A segment on a disk: one file, to which every row is appended at once."""

    def __init__(self, path: Path, header: Mapping[str, Any]):
        self._file = path.open("x", encoding="utf-8")
        self.add(header)

    def add(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        try:
            self.sync()
        finally:
            self._file.close()


class _WrittenSegment:
    """A segment in a bucket: each `sync` writes the rows since the last one as a file."""

    def __init__(
        self, directory: Path, number: int, header: Mapping[str, Any], confirm: Callable[[], None]
    ):
        start = header.get("start") or uuid.uuid4().hex
        self._name, self._header, self._confirm = f"{number:04d}-{start}", dict(header), confirm
        self._directory, self._parts = directory, 0
        self._lines: list[Mapping[str, Any]] = []

    def add(self, line: Mapping[str, Any]) -> None:
        self._lines.append(line)

    def sync(self) -> None:
        if not self._lines:
            return
        self._confirm()
        lines = [self._header, *self._lines]
        with atomic_write(self._directory / f"{self._name}-{self._parts:06d}.jsonl") as file:
            file.write_text("".join(json.dumps(x) + "\n" for x in lines), encoding="utf-8")
        self._lines, self._parts = [], self._parts + 1
        self._header["from_step"] = None  # the next file continues this one

    def close(self) -> None:
        self.sync()


def read_records(run_dir: str | Path, warn: Callable[[str], None] = lambda text: None) -> list[Row]:
    """Returns the rows of a run that were not superseded, one per step, in order.

    `warn` is called with one line for every segment that another version wrote, and for every
    segment that is not valid to its end. If a kill has truncated the last line, nothing is lost: no
    checkpoint was saved after this row, so the resumed run writes it again.
    """
    rows: dict[int, Row] = {}
    for segment, content in _read_segments(run_dir, warn):
        for line in _parse(segment, content, warn):
            # The first item is the header's step; without a header, a segment supersedes nothing.
            if isinstance(line, int):
                rows = {step: row for step, row in rows.items() if step <= line}
                continue
            earlier = rows.get(line.step)
            values = {**earlier.values, **line.values} if earlier else line.values
            rows[line.step] = Row(line.step, line.tokens, values)
    return [row for _, row in sorted(rows.items())]


def read_trunk(
    branch: run_json.BranchPoint | None, warn: Callable[[str], None] = lambda text: None
) -> list[Row]:
    """Returns the rows of a branch's trunk up to where the branch left it, as far as they exist."""
    if branch is None:
        return []
    trunk = storage_path(branch.from_run)
    if run_json.is_other_run(trunk, branch.run_id):
        warn(f"{trunk} is another run now than the trunk: the losses before are left out")
        return []
    return [row for row in read_records(trunk, warn) if row.step <= branch.step]


def count_before(rows: Sequence[Row], step: int) -> int:
    """Returns the number of rows before a step."""
    return sum(row.step < step for row in rows)


def describe_missing(found: int, expected: int, step: int) -> str | None:
    """Returns a text on how many of the expected rows before a step are missing; None for none."""
    if found >= expected:
        return None
    return f"{expected - found:,} of the {expected:,} rows of records before step {step:,} are lost"


def kernel_errors(row: Row) -> dict[str, float]:
    """Returns the kernel error of each evaluated average that began late, by label."""
    return _of_averages(row, KERNEL_ERROR)


def starts_of_averages(row: Row) -> dict[str, int]:
    """Returns the step at which each evaluated average that began late started, by label."""
    return {label: int(step) for label, step in _of_averages(row, SINCE).items()}


def _of_averages(row: Row, what: str) -> dict[str, float]:
    names = ((name.split("/"), value) for name, value in row.values.items())
    return {x[1]: value for x, value in names if [x[0], *x[2:]] == ["eval", what]}


def is_evaluated(run_dir: str | Path, step: int) -> bool:
    """Returns whether the records of a run contain an evaluation at a step."""
    return any(name.startswith("eval/") for name in recorded_names(run_dir, step))


def recorded_names(run_dir: str | Path, step: int) -> list[str]:
    """Returns the names of all values at a step."""
    return [name for row in read_records(run_dir) if row.step == step for name in row.values]


def segments(run_dir: str | Path) -> list[Path]:
    """Returns the segments of a run in order."""
    files = (storage_path(run_dir) / DIRECTORY).glob("[0-9]*.jsonl")
    return sorted((x for x in files if _number(x) >= 0), key=lambda x: (_number(x), x.name))


def read_starts(run_dir: str | Path) -> list[dict[str, Any]]:
    """Returns the header of every start, in order, as far as the headers are valid.

    A header has the step "from_step" and whatever the start recorded, such as "devices". "seconds"
    is the list of the steps at which the start recorded its seconds, each with the seconds.
    """
    starts: list[dict[str, Any]] = []
    for _, content in _read_segments(run_dir, lambda text: None):
        with contextlib.suppress(ValueError, TypeError, LookupError, AttributeError):
            header, *lines = content.split(b"\n")
            about = dict(parse_json(header))
            if type(about.get("from_step")) is int:
                starts.append(about | {"seconds": []})
            for fields in map(parse_json, filter(None, lines)):
                if "seconds" in fields:
                    spent = {str(name): float(x) for name, x in fields["seconds"].items()}
                    starts[-1]["seconds"].append((_count(fields["step"]), spent))
    return starts


def _number(segment: Path) -> int:
    """Returns the number of the start that wrote a segment, -1 for a file that is no segment."""
    number = segment.stem.partition("-")[0]
    return int(number) if number.isdecimal() else -1


def _read_segments(
    run_dir: str | Path, warn: Callable[[str], None]
) -> Iterator[tuple[Path, bytes]]:
    """Yields the segments of a run in order, each with its content."""
    paths = segments(run_dir)
    found = read_files(paths)
    for path in paths:
        if path in found:
            yield path, found[path]
        else:
            warn(f"{path}: it is not a regular file")


def _parse(segment: Path, content: bytes, warn: Callable[[str], None]) -> Iterator[int | Row]:
    """Yields the step from which a segment starts, then its rows, as far as they are valid."""
    complete, _, torn = content.rpartition(b"\n")
    if torn:
        warn(f"{segment}: its last line is torn, as by a kill; no row of a saved step is lost")
    for number, line in enumerate(complete.split(b"\n") if complete else [], start=1):
        try:
            fields = parse_json(line)
            if number == 1:
                if (version := fields.get("format_version")) != FORMAT_VERSION:
                    raise ValueError(f"format version {version}, this is {FORMAT_VERSION}")
                if (written_by := fields["version"]) != __version__:
                    warn(f"{segment}: written by version {written_by}, this is {__version__}")
                if (from_step := fields["from_step"]) is not None:
                    yield _count(from_step)
                continue
            values = fields["values"]
            if type(values) is not dict:
                raise ValueError("values is not an object")
            if any(type(x) not in (int, float) for x in values.values()):
                raise ValueError("a value is not a number")
            row = Row(_count(fields["step"]), _count(fields["tokens"]), values)
            if values:
                yield row
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            warn(f"{segment}: read up to line {number}, which is not a record ({error!r})")
            return


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value
