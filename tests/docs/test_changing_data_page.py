"""The commands of docs/tutorials/changing_data.md, killed in each stage and resumed."""

import json
import pathlib
import shlex
from pydoc_data.topics import topics

import doc_blocks
import pytest
from paths import REPOSITORY
from run_command import run_command
from training_runs import bits, records

from anytime_jax.commands import dispatch

pytestmark = pytest.mark.slow

PAGE = REPOSITORY / "docs" / "tutorials" / "changing_data.md"
BLOCKS = [x for x in doc_blocks.read_blocks(PAGE) if x.mark == "run by"]
(FILE,) = (x.code for x in BLOCKS if x.language == "python")
*PREPARE, TRAIN, DECAY = (
    shlex.split(line)
    for block in BLOCKS
    if block.language == "bash"
    for line in block.code.splitlines()
)
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
    """The working directory after a run that was killed twice, an unbroken one, and a decay."""
    place = tmp_path_factory.mktemp("changing")
    web, manuals = (place / "text" / x for x in ("web", "manuals"))
    for folder in (web, manuals, place / "text" / "code"):
        folder.mkdir(parents=True)
    for i, text in enumerate(topics.values()):
        (manuals if i % 2 else web).joinpath(f"{i}.txt").write_text(text)
    sources = sorted(pathlib.Path(json.__file__).parent.parent.glob("*.py"))[:60]
    for source in sources:
        (place / "text" / "code" / f"{source.stem}.txt").write_text(source.read_text("utf-8"))
    (place / "my_growing.py").write_text(FILE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        for line in PREPARE:
            assert run_command(dispatch.import_command("prepare"), line[4:]) == 0

    def train(line, *more, **moment):
        start = starts.launch(*line[4:], *SMALL, *more, folder=place, **moment)
        return start.wait(), start.output

    assert train(TRAIN, moment="update", skip=12)[0] == -9
    status, output = train(TRAIN, moment="update", skip=15)  # counted from the resumption
    assert (status, "from     10 steps" in output) == (-9, True)
    status, output = train(TRAIN)
    assert status == 0, output
    assert "from     20 steps" in output or "from     25 steps" in output
    status, whole = train(TRAIN, "--config.run_dir=runs/whole")
    assert status == 0, whole
    status, output = train(DECAY)
    assert status == 0, output
    (place / "start.txt").write_text(whole)
    return place


def test_killed_run_ends_as_the_unbroken_one(trained):
    runs = trained / "runs" / "growing", trained / "runs" / "whole"
    assert bits(runs[0], 40) == bits(runs[1], 40)
    ours, whole = map(records, runs)
    assert ours == whole


def test_start_prints_sources_and_stages(trained):
    text = (trained / "start.txt").read_text()
    assert "stage    from 20 steps (2x, 81.9K tokens): windows of 256 tokens" in text
    for name in ("web", "code", "manuals"):
        assert f"data     {name}, data/{name}: " in text
        assert f"eval     {name} (weight " in text
    assert "validation loss by set" in text


def test_each_set_is_evaluated_and_the_mean_has_fixed_weights(trained):
    weights = {"web": 0.4, "code": 0.3, "manuals": 0.3}
    rows = {step: x for step, _, x in records(trained / "runs" / "whole") if "eval/f25/loss" in x}
    assert list(rows) == [5, 10, 15, 20, 25, 30, 35, 40]
    for step, values in rows.items():
        mean = sum(w * values[f"eval/{x}/f25/loss"] for x, w in weights.items())
        assert values["eval/f25/loss"] == pytest.approx(mean, rel=1e-9)
        assert ("eval/web@256/last/loss" in values) == (step > 20)
    for name in weights:
        assert rows[40][f"eval/{name}/last/loss"] < rows[5][f"eval/{name}/last/loss"]
    assert (trained / "runs" / "whole" / "curves.png").stat().st_size > 20_000


def test_decay_is_on_the_best_source_alone(trained):
    (branch,) = (trained / "runs").glob("growing_decay_*")
    about = json.loads((branch / "run.json").read_text())
    assert [(x["step"], x["length"]) for x in about["stages"]] == [(0, 128), (20, 256), (36, 256)]
    manuals = about["stages"][1]["sources"][1][0]
    assert about["stages"][2]["sources"] == [[manuals, 1]]
