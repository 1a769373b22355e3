"""The examples of docs/extend.md: trained, resumed, branched and exported from an empty folder."""

import contextlib
import http.server
import json
import shlex
import shutil
import sys
import threading

import doc_blocks
import pytest
import small_run
import tracker_stubs
from paths import REPOSITORY
from training_runs import bits

from anytime_jax import api
from anytime_jax.checkpoints import run_json
from anytime_jax.checkpoints.metric_records import read_records
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


@contextlib.contextmanager
def webhook():
    """Yields the address of a webhook, and a list of what is posted to it."""
    posted = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", posted
        server.shutdown()


@pytest.mark.filterwarnings("ignore")  # of the libraries, where they are installed
def test_trackers_have_what_the_records_have(folder, command, monkeypatch):
    """After two starts, in one run of each; the second goes on from 1x."""
    tracker_stubs.install(monkeypatch)
    monkeypatch.setenv("TRACKIO_DIR", str(folder / "trackio"))
    modules = ("my_mlflow", "my_trackio", "my_message")
    programs, [(name, *words)] = read_example("my_mlflow")
    for module, program in zip(modules, programs, strict=True):
        (folder / f"{module}.py").write_text(program, "utf-8")
    train = dispatch.import_command(name)
    try:
        with webhook() as (address, posted):
            monkeypatch.setenv("MESSAGE_URL", address)
            for stop in ("1x", "2x"):
                status, out, err = command(
                    train, *(x.replace("stop=1x", f"stop={stop}") for x in words)
                )
                assert (status, "failed" in out) == (0, False), out + err
        import mlflow  # pyright: ignore[reportMissingImports]
        from trackio.sqlite_storage import SQLiteStorage  # pyright: ignore[reportMissingImports]

        rows = read_records(folder / "runs/tracked")
        recorded = {(x.step, name, y) for x in rows for name, y in x.values.items()}
        assert len({x for x, name, _ in recorded if name == "train/loss"}) == 8
        client = mlflow.MlflowClient("sqlite:///mlflow.db")
        place = client.get_experiment_by_name("tiny").experiment_id
        (run,) = client.search_runs([place])
        names = {name for _, name, _ in recorded}
        history = [x for name in names for x in client.get_metric_history(run.info.run_id, name)]
        assert {(x.step, x.key, x.value) for x in history} == recorded
        assert len(history) == len(recorded)
        assert (run.info.status, run.info.run_name) == ("FINISHED", "tracked")
        mirror = sys.modules["my_mlflow"].MLflowRun(client, run.info.run_id)
        mirror.write(1, 1, {"tasks/f25/gsm8k/exact_match (strict-match)": 0.5})
        known = "tasks/f25/gsm8k/exact_match _strict-match_"
        assert [x.value for x in client.get_metric_history(run.info.run_id, known)] == [0.5]

        (name,) = SQLiteStorage.get_runs("anytime")
        assert name == f"tracked-{run_json.run_id(folder / 'runs/tracked')[:8]}"
        logs = SQLiteStorage.get_logs("anytime", name)
        shown = {(x["step"], y, x[y]) for x in logs for y in names & x.keys()}
        assert shown == recorded
    finally:
        for module in modules:
            sys.modules.pop(module, None)
    assert [x["text"].partition(":")[0] for x in posted] == ["tracked (stop)"] * 2
