"""The commands of docs/tutorials/changing_data.md, in order, and what the page says of them."""

import shlex
import subprocess
import sys

import doc_blocks
import pytest
from paths import REPOSITORY
from run_command import run_command
from training_runs import records

from anytime_jax.checkpoints.run_json import read_run_file
from anytime_jax.commands import dispatch

pytestmark = pytest.mark.slow

PAGE = REPOSITORY / "docs" / "tutorials" / "changing_data.md"
BLOCKS = [x for x in doc_blocks.read_blocks(PAGE) if x.mark == "run by"]
(FILE,) = (x.code for x in BLOCKS if x.language == "python")
TEXT, *COMMANDS = (x.code for x in BLOCKS if x.language == "bash")
*PREPARE, TRAIN, DECAY = (shlex.split(line) for x in COMMANDS for line in x.splitlines())
SMALL = (
    "--config.chinchilla_tokens=40_960",  # ten updates
    "--config.schedule.warmup=5 steps",
    "--config.checkpoint.every=5 steps",
    "--config.eval.every=0.5x",
    "--config.eval.tokens=1_024",
    "--config.log.every=1 steps",
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, starts):
    """The working directory after a run and its decay."""
    place = tmp_path_factory.mktemp("changing")
    program = TEXT.replace("\npython ", f"\n{sys.executable} ")
    subprocess.run(["bash", "-euc", program], cwd=place, check=True)
    (place / "my_growing.py").write_text(FILE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        for line in PREPARE:
            assert run_command(dispatch.import_command("prepare"), line[2:]) == 0

    for line in (TRAIN, DECAY):
        start = starts.launch(*line[2:], *SMALL, folder=place)
        assert start.wait() == 0, start.output
    return place


def test_each_set_is_evaluated_and_the_mean_has_fixed_weights(trained):
    weights = {"code": 0.4, "docstrings": 0.3, "manuals": 0.3}
    rows = {step: x for step, _, x in records(trained / "runs" / "growing") if "eval/f25/loss" in x}
    assert list(rows) == [5, 10, 15, 20, 25, 30, 35, 40]
    for step, values in rows.items():
        mean = sum(w * values[f"eval/{x}/f25/loss"] for x, w in weights.items())
        assert values["eval/f25/loss"] == pytest.approx(mean, rel=1e-9)
        assert ("eval/code@256/last/loss" in values) == (step > 20)


def test_decay_is_on_the_best_source_alone(trained):
    (branch,) = (trained / "runs").glob("growing_decay_*")
    stages = read_run_file(branch).stages
    assert [(x.step, x.length) for x in stages] == [(0, 128), (20, 256), (36, 256)]
    manuals = stages[1].sources[2][0]
    assert stages[2].sources == ((manuals, 1),)
