"""Python files of configurations and studies: names, imports, errors."""

import concurrent.futures
import importlib
import sys
import time

import pytest

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
    monkeypatch.setattr(python_files, "SHIPPED", shipped)
    monkeypatch.setattr(python_files, "SHIPPED_STUDIES", studies)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work


def load(text):
    importlib.invalidate_caches()  # the files are a moment old
    with python_files.execute(text, python_files.find("config", text, "configuration")) as content:
        return content["get_config"]()


def test_path_comes_before_local_name_and_that_before_shipped_name(folder):
    find = python_files.find
    assert find("config", "quickstart", "configuration").parent == python_files.SHIPPED
    (folder / "configs").mkdir()
    (folder / "configs" / "quickstart.py").write_text("")
    assert str(find("config", "quickstart", "configuration")) == "configs/quickstart.py"
    (folder / "quickstart").write_text("")
    assert str(find("config", "quickstart", "configuration")) == "quickstart"
    assert find("config", "laptop", "configuration", "study").parent.name == "studies"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("quikstart", r"did you mean --config=quickstart\?"),
        ("configs/quickstart.py", r"did you mean --config=quickstart\?"),
        ("laptop", "there are large, quickstart"),
        ("../configs/quickstart", "quickstart"),
        ("a\nb", "there are"),
        (".", "there are"),
        ("", "there are"),
    ],
)
def test_unknown_name_is_answered_with_known_ones(folder, text, hint):
    with pytest.raises(InputError, match=hint):
        python_files.find("config", text, "configuration")


def test_summaries_are_read_without_executing_a_file(folder, capsys):
    (folder / "configs").mkdir()
    (folder / "configs" / "mine.py").write_text('"""Mine."""\ndef get_config(): 1 / 0\nraise 1\n')
    (folder / "configs" / "broken.py").write_text("def get_config(:\n")
    assert python_files.summaries("configuration") == {
        "large": "A run of large.",
        "quickstart": "A run of quickstart.",
        "mine": "Mine.",
    }
    assert python_files.summaries("study") == {"laptop": ""}
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


def test_threads_load_files_one_after_another(folder):
    for name, seconds in (("first", 0.1), ("longer", 0.2)):
        (folder / f"{name}.py").write_text(
            f"import time\nfrom configs import base\n\ndef get_config():\n"
            f"    time.sleep({seconds})\n    from configs.base import NAME\n    return NAME\n"
        )
    with concurrent.futures.ThreadPoolExecutor() as threads:
        first = threads.submit(load, "first.py")
        time.sleep(0.05)
        longer = threads.submit(load, "longer.py")  # would import after the first has ended
    assert first.result() == longer.result() == "shipped"


def test_error_of_a_file_names_its_line(folder):
    (folder / "mine.py").write_text("from configs import base\nbase.missing\n")
    message = r"it cannot be run: line 2, 'base.missing': AttributeError"
    with pytest.raises(InputError, match=message), python_files.execute("it", folder / "mine.py"):
        pass


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("def get_config(:\n    return 1\n", "SyntaxError"),
        ("raise SystemExit(0)\n", "SystemExit"),
        ("import no_such_module\n", "no_such_module"),
        ("config = 1\n", r"get_config\(\)"),
    ],
    ids=["syntax error", "exit", "missing import", "no get_config"],
)
def test_file_that_is_no_configuration_is_named(folder, content, named):
    (folder / "mine.py").write_text(content)
    with pytest.raises(InputError, match=f"^--config=mine.py.*{named}") as caught:
        python_files.get_config("mine.py")
    assert "\n" not in str(caught.value)


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
