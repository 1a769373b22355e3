"""The examples of docs/extend.md: trained, resumed, branched and exported from an empty folder."""

import shlex
import shutil
import sys

import doc_blocks
import pytest
import small_run
from paths import REPOSITORY
from training_runs import bits

from anytime_jax import api
from anytime_jax.commands import dispatch
from anytime_jax.distributed import sharding
from anytime_jax.errors import InputError
from anytime_jax.training import plan as plan_lib

pytestmark = pytest.mark.slow

PAGE = REPOSITORY / "docs" / "extend.md"
DATA = "runs/data/builtin-1024"  # of the quickstart


def read_example(module):
    """The programs and the command lines of the section of a module."""
    text = PAGE.read_text("utf-8") + "\n## "
    start = text.index(f"`{module}.py`")
    first, end = (text[:x].count("\n") for x in (start, text.index("\n## ", start)))
    blocks = [x for x in doc_blocks.read_blocks(PAGE) if first < x.line <= end]
    programs = [x.code for x in blocks if x.language == "python"]
    lines = "".join(x.code for x in blocks if x.language == "bash").replace("\\\n", " ")
    return programs, [shlex.split(line)[1:] for line in lines.splitlines()]


def read_commands(module, run):
    """The commands of a class: those of its section, a resume, and what the page shows once."""
    _, commands = read_example(module)
    first = next(words for words in commands if words[0] == "train")
    resume = [word.replace("stop=1x", "stop=2x") for word in first]
    commands.insert(commands.index(first) + 1, resume)
    if module != "my_optimizer":
        branch, export = (
            [word.replace("adafactor", run).replace("my_optimizer", module) for word in words]
            for words in read_example("my_optimizer")[1][1:]
        )
        if module != "my_schedule":  # which shows a branch of its own
            commands.append(branch)
        if module != "my_model":  # which is refused
            commands.append(export)
    return commands, resume[1:]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A place for the data of the quickstart, which its first start prepares."""
    return tmp_path_factory.mktemp("data") / "builtin"


@pytest.fixture
def folder(tmp_path, data, monkeypatch):
    """The working directory: empty, but for a quickstart that makes 40 updates to 1x."""
    configs, shipped = tmp_path / "configs", REPOSITORY / "configs"
    configs.mkdir()
    quickstart = doc_blocks.shorten((shipped / "quickstart.py").read_text("utf-8"))
    quickstart = quickstart.replace(DATA, str(data)).replace("layers = 2", "layers = 1")
    quickstart = quickstart.replace("    return", '    config.averages = ("f25",)\n    return')
    (configs / "quickstart.py").write_text(quickstart, "utf-8")
    own_text = (shipped / "own_text.py").read_text("utf-8")
    (configs / "own_text.py").write_text(own_text.replace("160 *", "8 *"), "utf-8")
    monkeypatch.chdir(tmp_path)
    mesh = small_run.mesh()
    monkeypatch.setattr(sharding, "make_mesh", lambda config: mesh)
    monkeypatch.setattr(plan_lib, "make_program", small_run.program)  # compiled once
    return tmp_path


@pytest.mark.parametrize(
    ("module", "run"),
    [
        ("my_optimizer", "adafactor"),
        ("my_schedule", "polynomial"),
        ("my_model", "relu"),
        ("my_source", "topics"),
    ],
)
def test_example_trains_resumes_branches_and_exports(module, run, folder, command):
    def execute(name, *words):
        return command(dispatch.import_command(name), *words)

    (program, *others), _ = read_example(module)
    commands, resume = read_commands(module, run)
    (folder / f"{module}.py").write_text(program, "utf-8")
    for other in others:
        exec(other, {})
    try:
        for name, *words in commands:
            status, _, err = execute(name, *words)
            assert status == 0, err
        assert execute("train", *resume, "--config.run_dir=runs/whole")[0] == 0
        assert bits(folder / "runs/whole", 40) == bits(folder / "runs" / run, 40)
        runs = {x for x in (folder / "runs").iterdir() if (x / "run.json").exists()}
        assert len(runs) == 3
        for each in runs:
            api.open_run(each, trust=[module])
        if module == "my_model":
            words = f"--run=runs/{run}", f"--trust={module}", "--output=export"
            status, _, err = execute("export", *words)
            assert (status, "model.kind" in err) == (2, True)
        if module != "my_source":  # of which a run keeps no class
            with pytest.raises(InputError, match=f"--trust={module}"):
                api.open_run(runs.pop())
    finally:
        sys.modules.pop(module, None)
        shutil.rmtree(folder / "runs", ignore_errors=True)
