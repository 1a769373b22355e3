"""The number of microbatches that a run leaves to the compiler."""

import types

import jax
import jax.numpy as jnp
import pytest
import small_run

from anytime_jax.checkpoints import run_json
from anytime_jax.errors import InputError
from anytime_jax.training import microbatch_search, plan, step
from anytime_jax.training.active_run import open_run
from anytime_jax.training.objective import JOINED
from anytime_jax.training.state_memory import measure_state

MEMORY = 10**6


@pytest.fixture(name="compile")
def compile_fixture(monkeypatch):
    """Compiles stand-ins for programs: a name and microbatches.

    A batch of 8 takes 3.2 memories in one part, so that four parts fit; an evaluation takes none.
    """
    number = []
    make_program = step.make_program

    def make(*arguments, microbatches, **options):
        number[:] = [microbatches]
        return make_program(*arguments, microbatches=microbatches, **options)

    monkeypatch.setattr(step, "make_program", make)
    for name in ("update", "evaluation"):
        method = f"lower_{name}"
        monkeypatch.setattr(step.Program, method, lambda program, name=name: (name, *number))

    def compile(lowered):
        name, number = lowered
        return compiled(int(3.2 * MEMORY) // number if name == "update" else 0)

    return compile


def compiled(size, text=""):
    analysis = types.SimpleNamespace(argument_size_in_bytes=0, temp_size_in_bytes=size)
    return types.SimpleNamespace(as_text=lambda: text, memory_analysis=lambda: analysis)


def never(lowered):
    raise AssertionError(f"{lowered} was compiled")


def find(config, compile=never, devices=1):
    mesh, memory = small_run.mesh(devices), None if compile is never else MEMORY
    numbers = microbatch_search.possible_numbers(config, mesh)
    return microbatch_search.find(config, mesh, JOINED, numbers, memory, lambda text: None, compile)


@pytest.fixture(name="auto")
def auto_fixture(tmp_path):
    return small_run.config(tmp_path / "run", microbatches="auto")


def test_fewest_that_fit_are_found(auto, compile):
    assert find(auto, compile) == 4


def test_programs_of_a_run_are_measured():
    config, mesh = small_run.config("run"), small_run.mesh()
    program = step.make_program(config, mesh)
    state = sum(measure_state(program.abstract_state).sizes.values())
    size = microbatch_search.measure_programs(config, mesh, JOINED, 1, lambda x: x.compile())
    assert size > state


def test_an_evaluation_must_fit_too(auto, compile):
    def large(lowered):
        return compiled(MEMORY) if lowered[0] == "evaluation" else compile(lowered)

    with pytest.raises(InputError, match=r"config\.microbatches .* eval\.batch_size"):
        find(auto, large)


def test_programs_that_compute_twice_do_not_fit(auto, compile):
    assert find(auto, lambda x: compiled(0, "%fusion.remat" if x[1] < 8 else "")) == 8


def test_a_compiler_out_of_memory_tells_that_it_does_not_fit(auto, compile):
    def fail(lowered):
        if lowered[1] < 8:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory")
        return compile(lowered)

    assert find(auto, fail) == 8


def test_devices_must_share_each_microbatch(auto, compile):
    """Four devices divide microbatches of 8 and 4 rows; two parts are the most there are."""
    with pytest.raises(InputError, match="not even 2 fit"):
        find(auto, compile, devices=4)


def test_cpu_takes_eight_or_the_nearest_below(auto, tmp_path):
    assert find(auto) == 8
    assert find(small_run.config(tmp_path, microbatches="auto", batch_size=12)) == 6
    assert find(auto, devices=4) == 2


def test_run_keeps_its_number_and_finds_another_on_request(dataset, tmp_path, monkeypatch):
    """A resume and a branch compute the same updates, whatever the devices are then."""
    monkeypatch.setattr(plan, "make_program", small_run.program)
    trunk = tmp_path / "run"

    def planned(run=trunk, **changes):
        config = small_run.config(run, dataset.path, **changes)
        return plan.make_plan(config, small_run.mesh())

    with open_run(planned(microbatches=2)) as run:
        run.save(9, run.state._replace(step=jnp.int32(9)))
    assert run_json.read_run_file(trunk).microbatches == 2
    assert planned(microbatches="auto").program.microbatches == 2
    assert planned(microbatches="again").program.microbatches == 8
    branch = {"branch__from_run": str(trunk), "branch__at": "9 steps", "decay__horizon": "1x"}
    branch |= {"microbatches": "auto", "stop": "horizon"}
    assert planned(tmp_path / "branch", **branch).program.microbatches == 2
