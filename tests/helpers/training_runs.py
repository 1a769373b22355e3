"""Starts of small runs, and readers of the files that they write."""

import dataclasses
import io

import pytest
import small_run
import tensorstore
from rich.console import Console
from wrapped_step import WrappedStep

from anytime_jax.checkpoints.checkpoint_reader import ARRAY_ITEMS
from anytime_jax.checkpoints.manager import restore_checkpoint
from anytime_jax.checkpoints.metric_records import TIMINGS, read_records
from anytime_jax.config.run_config import Config
from anytime_jax.data.windows import Windows
from anytime_jax.distributed import sharding
from anytime_jax.training import loop, plan, run_data, step

MEANS = {"train/loss", "train/grad_norm", "train/clipped", "train/update_norm"}
TRAIN_NAMES = MEANS | {"lr", "train/spikes", "train/skipped"}
EVAL_NAMES = {"eval/last/loss", "eval/f6.25/loss", "eval/f25/loss"}


load = run_data.load_dataset

# Tokens of every update since the process started.
updates = []


def recording(config, mesh, rules, **options):
    """Returns `small_run.program` with its updates recorded in `updates`."""
    program = small_run.program(config, mesh, rules, **options)

    def train_step(state, tokens, rate):
        updates.append(tokens)
        return program.train_step(state, tokens, rate)

    return dataclasses.replace(program, train_step=WrappedStep(train_step))


def start(
    run, dataset, interrupted=lambda: False, mesh=None, fall_back=False, profile=None, **changes
):
    """Starts or resumes a run; returns its outcome and its output.

    Runs of one configuration share their compiled functions, which keep no state.
    """
    config = small_run.config(run, dataset.path, **changes)
    output = io.StringIO()
    console = Console(file=output, width=200)
    with pytest.MonkeyPatch.context() as patch:
        known = {str(dataset.path): dataset}
        patch.setattr(
            run_data, "load_dataset", lambda path, hint: known.get(str(path)) or load(path, hint)
        )
        if plan.make_program is step.make_program:  # unless a test has replaced it
            patch.setattr(plan, "make_program", recording)
        outcome = loop.train(
            config,
            console,
            interrupted=interrupted,
            fall_back=fall_back,
            mesh=mesh or small_run.mesh(),
            profile=profile,
        )
    return outcome, output.getvalue()


def update_by_hand(state, config, dataset, sizes, first=0):
    """Yields state and metrics after updates on the next windows, without the trainer."""
    mesh = small_run.mesh()
    program = small_run.program(config, mesh)
    datasets = dict.fromkeys(config.sources, dataset)
    order = {"seed": config.data.seed, "repeat": config.data.repeat}
    windows = Windows(datasets, config.mixture, **order)
    for size in sizes:
        rates = step.rates_at(config, int(state.step))
        tokens = sharding.put_batch(mesh, windows.batch(first, size), size)
        state, metrics = program.train_step(state, tokens, rates)
        first += size
        yield state, metrics


def after(count, error=None):
    """Returns an `interrupted` that is true, or raises `error`, after `count` updates."""
    start = len(updates)

    def interrupted():
        is_due = len(updates) - start >= count
        if is_due and error is not None:
            raise error
        return is_due

    return interrupted


def saved(run, step, config: Config | None = None):
    """Restores the checkpoint of a step."""
    program = small_run.program(config or small_run.config(run), small_run.mesh())
    return restore_checkpoint(run / "checkpoints" / str(step), program.abstract_state)


def bits(run, step):
    """Returns shapes, types and compressed values of a checkpoint's arrays, by item and name.

    Read by TensorStore alone, without code of the project; ten times as fast as `saved`.
    """
    arrays = {}
    for item in ARRAY_ITEMS:
        base = f"file://{run}/checkpoints/{step}/{item}/"
        store = tensorstore.KvStore.open({"driver": "ocdbt", "base": base}).result()
        reads = {name: store.read(name) for name in store.list().result()}
        assert reads
        arrays |= {(item, name): read.result().value for name, read in reads.items()}
    return arrays


def records(run):
    """Returns the rows of a run without timings."""
    rows = []
    for row in read_records(run):
        values = {name: x for name, x in row.values.items() if name not in TIMINGS}
        rows.append((row.step, row.tokens, values))
    return rows


def finished(factory, name, dataset, **changes):
    """Trains an uninterrupted run once for all test workers, which must not change it."""

    def make(run):
        assert start(run, dataset, **changes)[0].reason == "stop"

    return small_run.made_once(factory, name, make)
