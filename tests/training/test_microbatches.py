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
from anytime_jax.training.state_memory import measure_state

MEMORY = 10**6


@pytest.fixture(name="compile")
def compile_fixture(monkeypatch):
    """Gives the device a memory, and compiles stand-ins for programs: a name and microbatches.

    A batch of 8 takes 3.2 memories in one part, so that four parts fit; an evaluation takes none.
    """
    monkeypatch.setattr(microbatches, "device_spec", lambda device: DeviceSpec(1e12, 1e12, MEMORY))
    for name in ("update", "evaluation"):
        monkeypatch.setattr(
            step,
            f"lower_{name}",
            lambda program, config, mesh, name=name: (name, config.microbatches),
        )

    def compile(lowered):
        name, number = lowered
        return compiled(int(3.2 * MEMORY) // number if name == "update" else 0)

    return compile


def compiled(size, text=""):
    analysis = types.SimpleNamespace(argument_size_in_bytes=0, temp_size_in_bytes=size)
    return types.SimpleNamespace(as_text=lambda: text, memory_analysis=lambda: analysis)


def never(lowered):
    raise AssertionError(f"{lowered} was compiled")


def resolve(config, compile=never, devices=1):
    mesh = small_run.mesh(devices)
    return microbatches.resolve(config, mesh, lambda text: None, compile).microbatches


@pytest.fixture(name="auto")
def auto_fixture(tmp_path):
    return small_run.config(tmp_path / "run", microbatches="auto")


def test_fewest_that_fit_are_found(auto, compile):
    assert resolve(auto, compile) == 4


def test_programs_of_a_run_are_measured():
    config, mesh = small_run.config("run"), small_run.mesh()
    state = sum(measure_state(step.make_program(config, mesh).abstract_state).sizes.values())
    assert microbatches.measure_programs(config, mesh, lambda x: x.compile()) > state


def test_an_evaluation_must_fit_too(auto, compile):
    def large(lowered):
        return compiled(MEMORY) if lowered[0] == "evaluation" else compile(lowered)

    with pytest.raises(InputError, match=r"config\.microbatches .* eval\.batch_size"):
        resolve(auto, large)


def test_programs_that_compute_twice_do_not_fit(auto, compile):
    assert resolve(auto, lambda x: compiled(0, "%fusion.remat" if x[1] < 8 else "")) == 8


def test_a_compiler_out_of_memory_tells_that_it_does_not_fit(auto, compile):
    def fail(lowered):
        if lowered[1] < 8:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory")
        return compile(lowered)

    assert resolve(auto, fail) == 8


def test_devices_must_share_each_microbatch(auto, compile):
    """Four devices divide microbatches of 8 and 4 rows; two parts are the most there are."""
    with pytest.raises(InputError, match="not even 2 fit"):
        resolve(auto, compile, devices=4)


def test_run_keeps_its_number_and_finds_another_on_request(auto, compile, tmp_path):
    run = tmp_path / "run"
    about = {"config": small_run.config(run, microbatches=2).to_dict()}
    run_directory.initialize(run, {}, about)
    assert resolve(auto) == 2
    assert resolve(small_run.config(run, microbatches="again"), compile) == 4
    branch = {"branch__from_run": str(run), "branch__at": "1x", "decay__horizon": "2x"}
    branch = small_run.config(tmp_path / "branch", microbatches="auto", stop="horizon", **branch)
    assert resolve(branch) == 2


def test_cpu_takes_eight_or_the_nearest_below(auto):
    assert resolve(auto) == 8
    assert resolve(auto.replace(batch_size=12)) == 6
    assert resolve(auto, devices=4) == 2


def test_unknown_device_asks_for_a_number(auto, monkeypatch):
    monkeypatch.setattr(microbatches, "device_spec", lambda device: DeviceSpec(1e12))
    monkeypatch.setattr(microbatches.sharding, "device_memory", lambda mesh: None)
    with pytest.raises(InputError, match=r"config\.microbatches"):
        resolve(auto)


def test_run_is_recorded_with_its_number(dataset, tmp_path):
    """A resume computes the same updates, whatever the devices are then."""
    config = small_run.config(tmp_path / "run", dataset.path, microbatches="auto")
    with start(config, mesh=small_run.mesh()):
        pass
    recorded = run_directory.read_run_file(tmp_path / "run")["config"]["microbatches"]
    assert recorded == 8
