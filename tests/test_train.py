"""The contract of the loop: however a run is stopped, killed and resumed, it is the same run.

Bitwise, on one CPU device. Log, evaluation and checkpoint intervals leave no trace in the weights.
"""

import dataclasses
import errno
import io
import json
import math
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from rich.console import Console
from tiny import dataset_fixture  # noqa: F401

from anytime_jax import averaging, guard, preflight, train
from anytime_jax import step as step_lib
from anytime_jax.checkpoint import Checkpoints
from anytime_jax.checksums import digest
from anytime_jax.config import Config
from anytime_jax.data.dataset import SplitInfo
from anytime_jax.data.windows import Windows
from anytime_jax.errors import InputError, RunError
from anytime_jax.integrity import saved_steps
from anytime_jax.metrics import Writers
from anytime_jax.progress import Display
from anytime_jax.records import TIMINGS, read_records
from anytime_jax.retention import retention
from anytime_jax.train import Outcome

MEANS = {"train/loss", "train/grad_norm", "train/clipped", "train/update_norm"}
TRAIN_NAMES = MEANS | {"lr", "train/spikes", "train/skipped"}
EVAL_NAMES = {"eval/last/loss", "eval/f6.25/loss", "eval/f25/loss"}


_updates = 0


def counting(config, mesh):
    """`tiny.program`, whose updates are counted."""
    program = tiny.program(config, mesh)

    def train_step(state, tokens):
        global _updates
        _updates += 1
        return program.train_step(state, tokens)

    return dataclasses.replace(program, train_step=train_step)


@pytest.fixture(autouse=True)
def _shared_programs(monkeypatch):
    """Runs of one configuration share compiled functions, which keep no state."""
    monkeypatch.setattr(preflight, "make_program", counting)


def start(run, dataset, interrupted=lambda: False, mesh=None, fall_back=False, **changes):
    """One start of a run; its outcome and what it said."""
    config = tiny.config(run, dataset.path, **changes)
    said = io.StringIO()
    display = Display(config.clock, Console(file=said, width=200))
    outcome = train.train(config, mesh or tiny.mesh(), dataset, display, interrupted, fall_back)
    return outcome, said.getvalue()


def after(updates, then=None):
    """An `interrupted` that is true, or raises, once so many updates of this start are made."""
    began = _updates

    def interrupted():
        due = _updates - began >= updates
        if due and then is not None:
            raise then
        return due

    return interrupted


def saved(run, step, config: Config | None = None, mesh=None):
    """What the checkpoint of a step holds."""
    config = config or tiny.config(run)
    program = tiny.program(config, mesh or tiny.mesh())
    checkpoints = Checkpoints(run, retention(config))
    restored = checkpoints.restore(step, program.abstract_state)
    checkpoints.close()
    return restored


def bits(run, step):
    return {k: x.tobytes() for k, x in tiny.leaves(saved(run, step).state).items()}


def records(run):
    """The rows without what depends on the machine and the moment."""
    rows = []
    for row in read_records(run):
        values = {name: x for name, x in row.values.items() if name not in TIMINGS}
        rows.append((row.step, row.tokens, values))
    return rows


@pytest.fixture(scope="module")
def whole(dataset, tmp_path_factory):
    """A run to 2x, 20 updates, that nothing broke."""
    patch = pytest.MonkeyPatch()
    patch.setattr(preflight, "make_program", tiny.program)
    run = tmp_path_factory.mktemp("whole")
    outcome, said = start(run, dataset, stop="2x")
    patch.undo()
    assert outcome == Outcome(20, "stop")
    assert "from     0 steps (0x, 0 tokens) to 20 steps (2x, 1.28K tokens)" in said
    return run


# What a run leaves


def test_records_are_rows_of_means_and_of_evaluations(whole, dataset, tmp_path):
    rows = {step: set(values) for step, _, values in records(whole)}
    trained = {step for step, names in rows.items() if names & TRAIN_NAMES}
    assert trained == {3, 6, 9, 12, 15, 18}
    assert {step for step, names in rows.items() if names & EVAL_NAMES} == {5, 10, 15, 20}
    for names in rows.values():
        assert names in (TRAIN_NAMES, EVAL_NAMES, TRAIN_NAMES | EVAL_NAMES)
    assert all(tokens == step * tiny.BATCH * tiny.LENGTH for step, tokens, _ in records(whole))
    # A run that writes every update has the numbers that the means are made of.
    start(tmp_path, dataset, stop="2x", log__every="1 steps", eval__every="20 steps")
    each = {step: values for step, _, values in records(tmp_path)}
    for step, _, values in records(whole):
        for name in TRAIN_NAMES & values.keys():
            parts = [each[s][name] for s in range(step - 2, step + 1)]
            wanted = math.fsum(parts) / 3 if name in MEANS else parts[-1]
            assert values[name] == pytest.approx(wanted, rel=1e-12)
    assert each[20]["train/loss"] < each[1]["train/loss"] - 1  # it learned


def test_evaluations_are_those_of_the_checkpoint_of_that_step(whole, dataset):
    program = tiny.program(tiny.config("unused"), tiny.mesh())
    state = saved(whole, 10).state
    windows = Windows(
        dataset, "validation", length=tiny.LENGTH, seed=0, repeat=False, shuffle=False
    )
    values = {step: values for step, _, values in records(whole)}[10]
    trees = {"last": state.params, **averaging.averages(state.opt_state)}
    for label, tree in trees.items():
        total = sum(
            float(
                program.eval_step(tree, jnp.asarray(windows.batch(n, 1).repeat(8, 0)), np.eye(8)[0])
            )
            for n in range(10)
        )
        assert values[f"eval/{label}/loss"] == pytest.approx(total / 80, rel=1e-5)


def test_the_batches_are_the_samples_of_the_stream_in_order(whole, dataset):
    """The run again, by hand: every window in the order of the seed."""
    program = tiny.program(tiny.config("unused"), tiny.mesh())
    windows = Windows(dataset, "train", length=tiny.LENGTH, seed=tiny.DATA_SEED)
    state = program.init()
    for n in range(20):
        state, _ = program.train_step(state, jnp.asarray(windows.batch(n * tiny.BATCH, tiny.BATCH)))
    assert {k: x.tobytes() for k, x in tiny.leaves(state).items()} == bits(whole, 20)


def test_doublings_and_their_branch_points_are_kept(whole, dataset, tmp_path):
    assert saved_steps(whole) == [9, 10, 18, 20]  # 4, 8, 12 and 16 are gone
    start(tmp_path, dataset, stop="16 steps", checkpoint__keep_every="6 steps")
    assert saved_steps(tmp_path) == [6, 9, 10, 12, 16]


def test_meta_says_what_a_reader_needs(whole, dataset):
    meta = saved(whole, 10).meta
    assert meta["step"] == 10
    assert meta["samples"] == 80
    assert meta["tokens"] == 640
    assert meta["multiple"] == 1.0
    assert set(meta["averages"]) == {"f6.25", "f25"}
    assert meta["fingerprint"] == dataset.fingerprint
    assert meta["config"]["schedule"]["alpha"] == 7.0
    assert meta["jax"] == jax.__version__
    assert {len(values) for values in meta["interval"].values()} == {1}  # update 10, after row 9
    assert meta["checksums"].keys() == {"params", "opt", "averages"}


# Stopping and going on


def test_stopping_and_going_on_is_never_having_stopped(whole, dataset, tmp_path):
    assert start(tmp_path, dataset, stop="1x")[0] == Outcome(10, "stop")
    assert bits(tmp_path, 10) == bits(whole, 10)  # whatever comes later
    outcome, said = start(tmp_path, dataset, stop="2x")
    assert outcome == Outcome(20, "stop")
    assert "from     10 steps (1x, 640 tokens) to 20 steps" in said
    assert bits(tmp_path, 20) == bits(whole, 20)
    assert records(tmp_path) == records(whole)
    assert saved_steps(tmp_path) == saved_steps(whole)
    assert saved(tmp_path, 20).meta["samples"] == 160


def test_an_interrupted_run_goes_on_as_if_nothing_had_been(whole, dataset, tmp_path):
    assert start(tmp_path, dataset, after(7), stop="2x")[0] == Outcome(7, "interrupted")
    assert saved_steps(tmp_path)[-1] == 7
    assert start(tmp_path, dataset, after(0), stop="2x")[0] == Outcome(7, "interrupted")
    assert start(tmp_path, dataset, after(4), stop="2x")[0] == Outcome(11, "interrupted")
    assert start(tmp_path, dataset, stop="2x")[0] == Outcome(20, "stop")
    assert bits(tmp_path, 20) == bits(whole, 20)
    assert records(tmp_path) == records(whole)


def test_a_killed_run_goes_on_from_its_last_checkpoint(whole, dataset, tmp_path):
    for updates in (7, 10):  # after 4, the checkpoint before 7; after 12, the one before 14
        with pytest.raises(KeyboardInterrupt):
            start(tmp_path, dataset, after(updates, then=KeyboardInterrupt()), stop="2x")
    assert saved_steps(tmp_path)[-1] == 12
    assert start(tmp_path, dataset, stop="2x")[0] == Outcome(20, "stop")
    assert bits(tmp_path, 20) == bits(whole, 20)
    assert records(tmp_path) == records(whole)


def test_intervals_may_change_and_leave_no_trace_in_the_weights(whole, dataset, tmp_path):
    start(
        tmp_path,
        dataset,
        stop="13 steps",
        log__every="4 steps",
        eval__every="7 steps",
        eval__tokens=5 * tiny.LENGTH,
        checkpoint__every="5 steps",
        checkpoint__keep=1,
    )
    start(tmp_path, dataset, stop="2x", log__every="1 steps", checkpoint__every="100 steps")
    assert bits(tmp_path, 10) == bits(whole, 10)
    assert bits(tmp_path, 20) == bits(whole, 20)


def test_a_run_that_is_there_does_nothing(whole, dataset):
    before = sorted(p.name for p in (whole / "records").iterdir())
    assert start(whole, dataset, stop="2x")[0] == Outcome(20, "stop")
    assert start(whole, dataset, stop="1x")[0] == Outcome(20, "stop")
    assert sorted(p.name for p in (whole / "records").iterdir()) == before
    assert saved_steps(whole) == [9, 10, 18, 20]


def test_a_stop_with_a_plus_goes_on_to_the_next_doubling(whole, dataset, tmp_path):
    assert start(tmp_path, dataset, stop="1x+")[0] == Outcome(10, "stop")
    assert start(tmp_path, dataset, after(5), stop="1x+")[0] == Outcome(15, "interrupted")
    assert start(tmp_path, dataset, stop="1x+")[0] == Outcome(20, "stop")
    assert bits(tmp_path, 20) == bits(whole, 20)


@pytest.mark.slow
def test_a_run_goes_on_on_another_layout(whole, dataset, tmp_path):
    mesh = tiny.mesh(8, data=2, fsdp=2, tensor=2)
    start(tmp_path, dataset, stop="1x")
    outcome, _ = start(tmp_path, dataset, mesh=mesh, stop="2x", microbatches=2)
    assert outcome == Outcome(20, "stop")
    wanted = {step: values for step, _, values in records(whole)}
    for step, _, values in records(tmp_path):
        for name, value in values.items():
            assert value == pytest.approx(wanted[step][name], abs=1e-5, rel=1e-4), (step, name)


def test_averages_may_come_later_and_go(whole, dataset, tmp_path):
    start(tmp_path, dataset, stop="1x")
    _, said = start(tmp_path, dataset, stop="2x", averages=(25.0, 100.0))
    assert "average f100 is new: it starts from the weights at step 10" in said
    assert "average f6.25 is no longer kept" in said
    config = tiny.config(tmp_path, averages=(25.0, 100.0))
    found = tiny.leaves(saved(tmp_path, 20, config).state)
    wanted = tiny.leaves(saved(whole, 20).state)
    for name, leaf in found.items():
        if "f100" not in name:  # the rest does not notice
            assert leaf.tobytes() == wanted[name].tobytes(), name
    # f100 is the weighted sum of the weights since step 10, which f25 and the rule do not hold.
    rule = averaging.GrowingWindow(100.0)
    program = tiny.program(tiny.config("unused"), tiny.mesh())
    windows = Windows(dataset, "train", length=tiny.LENGTH, seed=tiny.DATA_SEED)
    state = saved(whole, 10).state
    head = np.asarray(state.params["head"], np.float64)
    for n in range(10, 20):
        state, _ = program.train_step(state, jnp.asarray(windows.batch(n * tiny.BATCH, tiny.BATCH)))
        weight = float(rule.evaluate(n + 1))
        head += weight * (np.asarray(state.params["head"], np.float64) - head)
    (mine,) = (x for k, x in found.items() if "['f100']['head']" in k)
    np.testing.assert_allclose(mine, head, rtol=0, atol=2e-7)
    rows = {step: values for step, _, values in records(tmp_path)}
    assert {"eval/last/loss", "eval/f25/loss", "eval/f100/loss"} < rows[15].keys()
    assert "eval/f6.25/loss" not in rows[15]


# Data


def shortened(dataset, windows):
    split = dataclasses.replace(dataset.splits["train"], windows=windows)
    return dataclasses.replace(dataset, splits={**dataset.splits, "train": split})


def test_a_run_without_a_stop_ends_with_its_data(dataset, tmp_path):
    short = shortened(dataset, 13 * tiny.BATCH + 3)
    assert start(tmp_path, short, stop="never")[0] == Outcome(13, "data")
    assert saved_steps(tmp_path)[-1] == 13
    assert start(tmp_path, short, stop="never")[0] == Outcome(13, "data")
    # The end is evaluated, wherever it falls.
    assert [row[0] for row in records(tmp_path) if row[2].keys() >= EVAL_NAMES] == [5, 10, 13]


def test_a_stop_past_the_data_is_refused_at_once(dataset, tmp_path):
    short = shortened(dataset, 13 * tiny.BATCH + 3)
    with pytest.raises(InputError) as caught:
        start(tmp_path, short, stop="2x")
    message = str(caught.value)
    assert "config.stop = '2x' needs 160 windows" in message
    assert "has 107, enough for 13 steps (1.3x, 832 tokens)" in message
    assert start(tmp_path, short, stop="13 steps")[0] == Outcome(13, "stop")


def test_repeated_data_have_no_end(dataset, tmp_path):
    short = shortened(dataset, 5 * tiny.BATCH)
    outcome, _ = start(tmp_path, short, after(12), stop="never", data__repeat=True)
    assert outcome == Outcome(12, "interrupted")
    assert saved(tmp_path, 12).meta["samples"] == 96


@pytest.mark.parametrize(
    ("changes", "splits", "message"),
    [
        ({"model__length": 16}, {}, r"config\.model\.length = 16, but .* has windows of 8"),
        ({"model__vocab_size": 290}, {}, r"config\.model\.vocab_size = 290, .* vocabulary of 300"),
        (
            {"eval__tokens": 808},
            {"validation": SplitInfo(10, 800, 100)},
            r"config\.eval\.tokens = 808, .* has 800",
        ),
    ],
    ids=["length", "vocabulary", "evaluation"],
)
def test_data_that_do_not_fit_are_refused(dataset, changes, splits, message):
    dataset = dataclasses.replace(dataset, splits={**dataset.splits, **splits})
    with pytest.raises(InputError, match=message):
        preflight.check_data(tiny.config("run", **changes), dataset)
    preflight.check_data(tiny.config("run", eval__tokens=700), dataset)


# What breaks in flight


# Batches of one token, and what their loss is multiplied with.
BAD_TOKENS = {math.nan: 299, 3.0: 298}
_breakable = {}


def broken_at(monkeypatch, updates, what=math.nan):
    """The loss of some updates, and so their gradient, comes out as NaN or as a multiple."""
    losses = step_lib._losses

    def make(config, mesh):
        key = (config.guard.skip == "spikes", config.guard.spike, guard.MEMORY)
        if key not in _breakable:  # compiled once for all tests
            _breakable[key] = step_lib.make_program(config, mesh)
        program = _breakable[key]

        def train_step(state, tokens):
            bad = int(state.step) + 1 in updates
            return program.train_step(state, jnp.where(bad, BAD_TOKENS[what], tokens))

        return dataclasses.replace(program, train_step=train_step)

    def token_losses(config, constrain, params, tokens):
        factor = 1.0
        for multiple, token in BAD_TOKENS.items():
            factor = jnp.where((tokens[:, :1] == token).all(), multiple, factor)
        return losses(config, constrain, params, tokens) * factor

    monkeypatch.setattr(preflight, "make_program", make)
    monkeypatch.setattr(step_lib, "_losses", token_losses)


def check_last_good(run, step):
    assert saved_steps(run)[-1] == step
    restored = saved(run, step)
    for leaf in jax.tree.leaves(restored.state):
        assert bool(jnp.isfinite(leaf).all())


def test_a_loss_that_is_not_finite_ends_the_run_at_its_last_good_checkpoint(
    whole, dataset, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        broken_at(patch, {7})
        message = (
            r"update 7 \(samples 48 to 55\) has a loss of nan, .* and a gradient of norm nan; the "
            r"last good checkpoint in .* is that of step 4\. Try --config\.guard\.skip=nonfinite"
        )
        with pytest.raises(RunError, match=message):
            start(tmp_path, dataset, stop="2x")
        check_last_good(tmp_path, 4)
    # Without what broke it, the run goes on as if nothing had been.
    monkeypatch.setattr(preflight, "make_program", tiny.program)
    assert start(tmp_path, dataset, stop="2x")[0] == Outcome(20, "stop")
    assert bits(tmp_path, 20) == bits(whole, 20)
    assert records(tmp_path) == records(whole)


def test_bad_updates_are_passed_over_and_counted_where_that_was_asked_for(
    dataset, tmp_path, monkeypatch
):
    broken_at(monkeypatch, {7, 12, 13})
    changes = {"guard__skip": "nonfinite", "guard__limit": 2, "stop": "2x"}
    outcome, said = start(tmp_path / "run", dataset, **changes)
    assert outcome == Outcome(20, "stop")
    assert "update 7 (samples 48 to 55) has a loss of nan" in said
    assert "skipped, 3 so far" in said
    rows = {step: values for step, _, values in records(tmp_path / "run")}
    skipped = {step: row["train/skipped"] for step, row in rows.items() if "train/skipped" in row}
    assert skipped == {3: 0, 6: 0, 9: 1, 12: 2, 15: 3, 18: 3}
    assert all(math.isfinite(x) for values in rows.values() for x in values.values())
    check_last_good(tmp_path / "run", 20)
    counts = {k: int(x) for k, x in tiny.leaves(saved(tmp_path / "run", 20).state).items()
              if k.endswith((".step", ".count"))}  # fmt: skip
    assert set(counts.values()) == {20}
    # A stop between two bad updates changes nothing, nor does an interval that one falls into.
    start(tmp_path / "parts", dataset, **{**changes, "stop": "12 steps"})
    start(tmp_path / "parts", dataset, **changes)
    assert bits(tmp_path / "parts", 20) == bits(tmp_path / "run", 20)
    trained = [
        [(s, {k: x for k, x in v.items() if k in TRAIN_NAMES}) for s, _, v in records(run)]
        for run in (tmp_path / "run", tmp_path / "parts")
    ]
    assert [row for row in trained[0] if row[1]] == [row for row in trained[1] if row[1]]


def test_too_many_bad_updates_in_a_row_end_the_run(dataset, tmp_path, monkeypatch):
    broken_at(monkeypatch, {6, 7, 8})
    with pytest.raises(RunError, match=r"update 8 .*: bad update number 3 in a row; .* of step 4"):
        start(tmp_path, dataset, stop="2x", guard__skip="nonfinite", guard__limit=2)


@pytest.mark.parametrize("skip", ["spikes", pytest.param("nonfinite", marks=pytest.mark.slow)])
def test_a_spike_is_reported_and_passed_over_where_that_was_asked_for(
    dataset, tmp_path, monkeypatch, skip
):
    monkeypatch.setattr(guard, "MEMORY", 4)
    broken_at(monkeypatch, {12}, what=3.0)
    changes = {"guard__skip": skip, "guard__spike": 8.0, "stop": "13 steps"}
    _, said = start(tmp_path, dataset, log__every="1 steps", **changes)
    assert "update 12 (samples 88 to 95) has a loss of 1" in said
    assert (": skipped, 1 so far" in said) == (skip == "spikes")
    assert (": a spike, 1 so far" in said) == (skip == "nonfinite")
    rows = {step: values for step, _, values in records(tmp_path)}
    assert [rows[s]["train/spikes"] for s in (11, 12)] == [0, 1]
    assert ("train/loss" in rows[12]) == (skip == "nonfinite")


def test_weights_that_are_not_finite_are_never_saved(dataset, tmp_path, monkeypatch):
    def make(config, mesh):
        program = tiny.program(config, mesh)

        def train_step(state, tokens):
            state, given = program.train_step(state, tokens)
            if int(state.step) == 8:
                state = state._replace(params=jax.tree.map(lambda x: x * jnp.nan, state.params))
            return state, given

        return dataclasses.replace(program, train_step=train_step)

    monkeypatch.setattr(preflight, "make_program", make)
    message = "params/blocks/attn_norm/scale holds a NaN or an infinity at step 8; .* step 4"
    with pytest.raises(RunError, match=message):
        start(tmp_path, dataset, stop="2x")
    check_last_good(tmp_path, 4)


@pytest.mark.slow
def test_an_absurd_rate_ends_in_one_line_and_finite_checkpoints(dataset, tmp_path):
    with pytest.raises(RunError, match="a lower peak rate"):
        start(tmp_path, dataset, stop="2x", schedule__peak=1e30)
    config = tiny.config(tmp_path, schedule__peak=1e30)
    for step in saved_steps(tmp_path):
        for leaf in jax.tree.leaves(saved(tmp_path, step, config).state):
            assert bool(jnp.isfinite(leaf).all())


def test_a_disk_too_full_for_the_records_is_said_in_one_line(dataset, tmp_path, monkeypatch):
    def fail(*args):
        raise OSError(errno.ENOSPC, "No space left on device", "0000.jsonl")

    monkeypatch.setattr(Writers, "write", fail)
    with pytest.raises(RunError, match=r"No space left on device.*last good checkpoint .* none"):
        start(tmp_path, dataset, stop="2x")


def test_a_state_too_large_for_the_devices_or_the_disk_is_refused(dataset, tmp_path, monkeypatch):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(preflight, "free_bytes", lambda path: 100_000)
        with pytest.raises(InputError, match=r"a checkpoint takes 547 kB and the disk has 100 kB"):
            start(run, dataset)
    monkeypatch.setattr(preflight.sharding, "device_memory", lambda mesh: 200_000)
    with pytest.raises(InputError, match=r"take 279 kB on each device, which has 200 kB"):
        start(run, dataset)
    assert not run.exists()


def damage(run, step):
    """Changes one bit of a weight on disk, so to say: its checksum is that of another number."""
    file = run / "checkpoints" / str(step) / "meta" / "metadata"
    meta = json.loads(file.read_text())
    meta["checksums"]["params"]["head"] += "1"
    del meta["digest"]
    file.write_text(json.dumps({**meta, "digest": digest(meta)}))


def test_a_damaged_checkpoint_is_refused_and_the_newest_good_one_named(dataset, tmp_path):
    start(tmp_path, dataset, stop="9 steps")
    damage(tmp_path, 9)
    before = sorted(path for path in tmp_path.rglob("*") if "records" not in path.parts)
    message = r"checkpoints/9: params/head is damaged.* that of step 8: --fall_back sets"
    with pytest.raises(RunError, match=message):
        start(tmp_path, dataset, stop="2x")
    assert sorted(p for p in tmp_path.rglob("*") if "records" not in p.parts) == before


def test_with_the_flag_it_falls_back_to_the_newest_good_one(whole, dataset, tmp_path):
    start(tmp_path, dataset, stop="9 steps")
    damage(tmp_path, 9)
    (tmp_path / "checkpoints" / "12").mkdir()
    with pytest.raises(RunError, match=r"checkpoints/12 is empty\. The newest good .* of step 8"):
        start(tmp_path, dataset, stop="2x")
    outcome, said = start(tmp_path, dataset, stop="2x", fall_back=True)
    assert outcome == Outcome(20, "stop")
    assert "set aside as 12.damaged" in said
    assert "set aside as 9.damaged" in said
    assert "from     8 steps" in said
    assert bits(tmp_path, 20) == bits(whole, 20)
    # One evaluation more, at the stop after 9 updates.
    assert [row for row in records(tmp_path) if row[0] != 9] == [
        row for row in records(whole) if row[0] != 9
    ]
    assert {"9", "9.damaged", "12.damaged"} <= {
        p.name for p in (tmp_path / "checkpoints").iterdir()
    }


def test_with_the_flag_and_no_good_checkpoint_it_begins_again(whole, dataset, tmp_path):
    start(tmp_path, dataset, stop="4 steps")
    damage(tmp_path, 4)
    with pytest.raises(RunError, match="There is no good one"):
        start(tmp_path, dataset, stop="2x")
    assert start(tmp_path, dataset, stop="2x", fall_back=True)[0] == Outcome(20, "stop")
    assert bits(tmp_path, 20) == bits(whole, 20)
    assert records(tmp_path) == records(whole)


def test_an_evaluation_cut_short_is_made_up_for(whole, dataset, tmp_path):
    """By a kill, or by a signal while it ran: at a point of the run, and at its end."""
    asked = []

    def interrupted():
        asked.append(1)
        return len(asked) > 12  # after ten updates: in the evaluation at 10

    assert start(tmp_path, dataset, interrupted, stop="2x")[0] == Outcome(10, "interrupted")
    assert 10 not in [step for step, _, values in records(tmp_path) if EVAL_NAMES & values.keys()]
    assert start(tmp_path, dataset, stop="1x")[0] == Outcome(10, "stop")  # the evaluation alone
    assert records(tmp_path) == [row for row in records(whole) if row[0] <= 10]
    shutil.rmtree(tmp_path / "records")
    start(tmp_path, dataset, stop="2x")
    assert [row for row in records(whole) if row[0] > 10] == records(tmp_path)[1:]
    assert records(tmp_path)[0][0] == 10
    assert bits(tmp_path, 20) == bits(whole, 20)
