"""The number of microbatches that a run leaves to the compiler."""

import types

import jax
import pytest
import small_run

from anytime_jax.checkpoints import run_directory
from anytime_jax.distributed.device_specs import DeviceSpec
from anytime_jax.errors import InputError
from anytime_jax.training import microbatches, step
from anytime_jax.training.start import start

MEMORY = 10**6
LOWER_UPDATE, LOWER_EVALUATION = step.lower_update, step.lower_evaluation


@pytest.fixture(autouse=True)
def _lowered_at_once(monkeypatch):
    """The update has several outputs, and an evaluation has one."""
    update, evaluation = (types.SimpleNamespace(out_info=x) for x in ((), None))
    monkeypatch.setattr(step, "lower_update", lambda *unused: update)
    monkeypatch.setattr(step, "lower_evaluation", lambda *unused: evaluation)


@pytest.fixture
def lowered(monkeypatch):
    """Lowers the programs of a run in place of stand-ins for them."""
    monkeypatch.setattr(step, "lower_update", LOWER_UPDATE)
    monkeypatch.setattr(step, "lower_evaluation", LOWER_EVALUATION)


@pytest.fixture
def compiled(monkeypatch):
    """Gives the device a memory, and returns what compiles updates, whose size falls by parts.

    A batch of 8 takes 3.2 memories in one part, so that four parts fit.
    """
    monkeypatch.setattr(microbatches, "device_spec", lambda device: DeviceSpec(1e12, 1e12, MEMORY))
    numbers, lower_update = [], step.lower_update

    def lower(program, config, mesh):
        numbers.append(config.microbatches)
        return lower_update(program, config, mesh)

    monkeypatch.setattr(step, "lower_update", lower)

    def compile(lowered, bytes_=int(3.2 * MEMORY), text=""):
        is_update = isinstance(lowered.out_info, tuple)
        size = bytes_ // numbers[-1] if is_update else 0
        return types.SimpleNamespace(
            as_text=lambda: text,
            memory_analysis=lambda: types.SimpleNamespace(
                argument_size_in_bytes=0, temp_size_in_bytes=size
            ),
        )

    compile.numbers = numbers
    return compile


def resolve(config, compile=None, devices=1, said=None):
    mesh, said = small_run.mesh(devices), [] if said is None else said
    arguments = () if compile is None else (compile,)
    return microbatches.resolve(config, mesh, said.append, *arguments).microbatches


def test_fewest_that_fit_are_found(lowered, compiled, tmp_path):
    said = []
    config = small_run.config(tmp_path / "run", microbatches="auto")
    assert resolve(config, compiled, said=said) == 4
    assert set(compiled.numbers) >= {2, 4}
    assert "update   microbatches = 2 takes 1.6 MB of 1 MB" in said
    assert "update   microbatches = 4 takes 800 kB of 1 MB" in said


def test_an_evaluation_must_fit_too(compiled, tmp_path):
    def compile(lowered):
        result = compiled(lowered)
        if not isinstance(lowered.out_info, tuple):
            result.memory_analysis = lambda: types.SimpleNamespace(
                argument_size_in_bytes=MEMORY // 2, temp_size_in_bytes=MEMORY
            )
        return result

    with pytest.raises(
        InputError,
        match=r"not even 8 fit the 1 MB of a device: take .* or a smaller eval.batch_size",
    ):
        resolve(small_run.config(tmp_path / "run", microbatches="auto"), compile)


def test_programs_that_compute_twice_do_not_fit(compiled, tmp_path):
    config = small_run.config(tmp_path / "run", microbatches="auto")

    def compile(lowered):
        return compiled(lowered, text="%fusion.remat" if compiled.numbers[-1] < 8 else "")

    assert resolve(config, compile) == 8


def test_a_compiler_out_of_memory_tells_that_it_does_not_fit(compiled, tmp_path):
    def compile(lowered):
        result = compiled(lowered)
        if compiled.numbers[-1] < 8:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory")
        return result

    assert resolve(small_run.config(tmp_path / "run", microbatches="auto"), compile) == 8


@pytest.mark.parametrize(("devices", "expected"), [(1, 4), (4, 2)])
def test_devices_must_share_each_microbatch(compiled, tmp_path, devices, expected):
    """Four devices divide microbatches of 8 and 4 rows; two parts are the most there are."""
    config = small_run.config(tmp_path / "run", microbatches="auto")

    def compile(lowered):
        return compiled(lowered, bytes_=int((3.2 if devices == 1 else 1.6) * MEMORY))

    assert resolve(config, compile, devices) == expected


def test_run_keeps_its_number_and_finds_another_on_request(compiled, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    about = {"config": small_run.config(run, microbatches=2).to_dict()}
    run_directory.initialize(run, {}, about)
    said = []
    assert resolve(small_run.config(run, microbatches="auto"), compiled, said=said) == 2
    assert (compiled.numbers, said) == ([], ["update   microbatches = 2, as before"])
    assert resolve(small_run.config(run, microbatches="again"), compiled) == 4
    branch = {"branch__from_run": str(run), "branch__at": "1x", "decay__horizon": "2x"}
    branch = small_run.config(tmp_path / "branch", microbatches="auto", stop="horizon", **branch)
    assert resolve(branch, compiled) == 2


@pytest.mark.parametrize("settings", ["text", {"microbatches": True}])
def test_damaged_run_file_has_no_number(compiled, tmp_path, settings):
    run = tmp_path / "run"
    run.mkdir()
    run_directory.initialize(run, {}, {"config": settings})
    assert resolve(small_run.config(run, microbatches="auto"), compiled) == 4


def test_number_that_the_devices_cannot_share_is_named(compiled, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    about = {"config": small_run.config(run, microbatches=8).to_dict()}
    run_directory.initialize(run, {}, about)
    said = []
    config = small_run.config(run, microbatches="auto")

    def compile(lowered):
        return compiled(lowered, bytes_=MEMORY)

    assert resolve(config, compile, devices=4, said=said) == 1
    assert said[0] == "update   microbatches = 8 before, which these 4 devices cannot share"


def test_cpu_takes_eight_or_the_nearest_below(tmp_path):
    config = small_run.config(tmp_path / "run", microbatches="auto")
    assert resolve(config) == 8
    assert resolve(config.replace(batch_size=12)) == 6
    assert resolve(config, devices=4) == 2


def test_unknown_device_asks_for_a_number(monkeypatch, tmp_path):
    monkeypatch.setattr(microbatches, "device_spec", lambda device: DeviceSpec(1e12))
    monkeypatch.setattr(microbatches.sharding, "device_memory", lambda mesh: None)
    with pytest.raises(InputError, match="the memory of a cpu is unknown: give a number"):
        resolve(small_run.config(tmp_path / "run", microbatches="auto"))


def test_run_is_recorded_with_its_number(dataset, tmp_path):
    """A resume computes the same updates, whatever the devices are then."""
    config = small_run.config(tmp_path / "run", dataset.path, microbatches="auto")
    with start(config, mesh=small_run.mesh()):
        pass
    recorded = run_directory.read_run_file(tmp_path / "run")["config"]["microbatches"]
    assert recorded == 8
