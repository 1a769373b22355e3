"""Python files of configurations and studies: names, imports, errors."""

import importlib
import sys

import pytest

from anytime_jax import plugins
from anytime_jax.config import python_files
from anytime_jax.errors import InputError

FILE = '''"""A run of {name}.

More about it.
"""
from configs import base

def get_config():
    return base.NAME
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working directory, beside a shipped folder of two configurations and a study."""
    shipped = tmp_path / "installed" / "configs"
    studies = tmp_path / "installed" / "studies"
    shipped.mkdir(parents=True)
    studies.mkdir()
    (shipped / "base.py").write_text("NAME = 'shipped'\nprint('executed')\n")
    for name in ("quickstart", "large"):
        (shipped / f"{name}.py").write_text(FILE.format(name=name))
    (studies / "laptop.py").write_text("def get_study(): pass\n")
    monkeypatch.setattr(python_files, "CONFIGURATIONS", shipped)
    folders = (
        plugins.Folder(shipped, "configurations", local="configs"),
        plugins.Folder(studies, "studies", "get_study", "configs/studies"),
    )
    installed = {"anytime_jax": plugins.Plugin(folders=folders)}
    monkeypatch.setattr(plugins, "installed", lambda: installed)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work


def load(text):
    importlib.invalidate_caches()  # the files are a moment old
    with python_files.execute(
        text, python_files.find("config", text, plugins.folders()[0])
    ) as content:
        return content["get_config"]()


def test_path_comes_before_local_name_and_that_before_shipped_name(folder):
    find = python_files.find
    assert find("config", "quickstart", *plugins.folders()).parent == python_files.CONFIGURATIONS
    (folder / "configs").mkdir()
    (folder / "configs" / "quickstart.py").write_text("")
    assert str(find("config", "quickstart", *plugins.folders())) == "configs/quickstart.py"
    (folder / "quickstart").write_text("")
    assert str(find("config", "quickstart", *plugins.folders())) == "quickstart"
    assert find("config", "laptop", *plugins.folders()).parent.name == "studies"


@pytest.mark.parametrize("text", ["quikstart", "laptop", "../configs/quickstart"])
def test_unknown_name_is_answered_with_known_ones(folder, text):
    with pytest.raises(InputError, match=r"^--config=.*quickstart"):
        python_files.find("config", text, plugins.folders()[0])


def test_summaries_are_read_without_executing_a_file(folder, capsys):
    (folder / "configs").mkdir()
    (folder / "configs" / "mine.py").write_text('"""Mine."""\ndef get_config(): 1 / 0\nraise 1\n')
    (folder / "configs" / "broken.py").write_text("def get_config(:\n")
    assert python_files.summaries(plugins.folders()[0]) == {
        "large": "A run of large.",
        "quickstart": "A run of quickstart.",
        "mine": "Mine.",
    }
    assert python_files.summaries(plugins.folders()[1]) == {"laptop": ""}
    assert capsys.readouterr().out == ""


def test_imports_come_from_the_file_then_the_working_directory_then_the_shipped(folder):
    modules = {name for name in sys.modules if name.startswith("configs")}
    (folder / "mine.py").write_text(FILE)
    assert load("mine.py") == "shipped"
    (folder / "configs").mkdir()
    (folder / "configs" / "copy.py").write_text(FILE)
    assert load("copy") == load("configs/copy.py") == "shipped"  # as long as there is no other
    (folder / "configs" / "base.py").write_text("NAME = 'local'\n")
    assert load("mine.py") == load("copy") == "local"
    assert load("quickstart") == "shipped"  # a shipped run is what it was
    other = folder / "other" / "configs"
    other.mkdir(parents=True)
    (other / "copy.py").write_text(FILE)
    (other / "base.py").write_text("NAME = 'other'\n")
    assert load("other/configs/copy.py") == "other"
    assert {name for name in sys.modules if name.startswith("configs")} == modules


def test_error_of_a_file_names_its_line(folder):
    (folder / "mine.py").write_text("from configs import base\nbase.missing\n")
    message = r"^it\b.*line 2.*AttributeError"
    with pytest.raises(InputError, match=message), python_files.execute("it", folder / "mine.py"):
        pass


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("def get_config(:\n    return 1\n", "SyntaxError"),
        ("raise SystemExit(0)\n", "SystemExit"),
        ("config = 1\n", r"get_config\(\)"),
    ],
    ids=["syntax error", "exit", "no get_config"],
)
def test_file_that_is_no_configuration_is_named(folder, content, named):
    (folder / "mine.py").write_text(content)
    with pytest.raises(InputError, match=f"^--config=mine.py.*{named}"):
        python_files.get_config("mine.py")


def test_file_built_on_a_shipped_one_may_change_a_point_to_a_number_or_a_word(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "from configs import quickstart\n\n\ndef get_config():\n"
        "    config = quickstart.get_config()\n"
        "    config.schedule.warmup, config.eval.tokens = 160, 'all'\n    return config\n"
    )
    config = python_files.get_config("mine.py")
    assert (config["schedule"]["warmup"], config["eval"]["tokens"]) == (160, "all")
