"""A command, named files and a kind of another distribution, as docs/extend.md says."""

import os
import subprocess
import sys

import doc_blocks
import pytest
from paths import REPOSITORY

PAGE = REPOSITORY / "docs" / "extend.md"
ENTRY_POINTS, CONTENTS = (x.code for x in doc_blocks.read_blocks(PAGE) if "PLUGIN" in x.code)
COMMAND = '''"""Count the parameters of a run."""

EXAMPLES = ("--run=runs/mine",)


def add_options(parser):
    parser.add_argument("--run")


def run(arguments):
    print(f"counted {arguments.run}")
    return 3
'''


OPTIMIZER = next(x.code for x in doc_blocks.read_blocks(PAGE) if "class Adafactor" in x.code)


@pytest.fixture
def start(tmp_path):
    """Runs `python -m anytime_jax` where a distribution of somebody else is installed."""
    package, about = tmp_path / "my_package", tmp_path / "my_package-1.0.dist-info"
    (package / "configs").mkdir(parents=True)
    (package / "plugin.py").write_text(CONTENTS)
    (package / "count_command.py").write_text(COMMAND)
    (package / "adafactor.py").write_text(OPTIMIZER)
    (package / "configs" / "tiny.py").write_text('"""A tiny run."""\n\ndef get_config(): ...\n')
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my_package\nVersion: 1.0\n")
    toml = ENTRY_POINTS.replace('[project.entry-points."anytime_jax.plugins"]', "")
    group = "[anytime_jax.plugins]" + toml.replace('"', "")
    (about / "entry_points.txt").write_text(group)

    def run(*argv):
        paths = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
        return subprocess.run(
            [sys.executable, "-m", "anytime_jax", *argv],
            cwd=tmp_path, capture_output=True, text=True, check=False,
            env=os.environ | {"PYTHONPATH": paths},
        )  # fmt: skip

    return run


def test_command_files_and_kinds_of_another_distribution_join(start):
    assert "  count            Count the parameters of a run.\n" in start("--help").stdout
    done = start("count", "--run=a")
    assert (done.returncode, done.stdout) == (3, "counted a\n")
    listed = start("train", "--list").stdout
    assert "my configurations (--config=NAME):\n  tiny " in listed
    words = "--config=quickstart", "--config.optimizer.kind=adafactor", "--print-config"
    assert "'kind': 'adafactor'" in start("train", *words).stdout


def test_plugin_that_cannot_be_imported_is_one_line(start, tmp_path):
    (tmp_path / "my_package" / "plugin.py").write_text("import nothing_of_that_name\n")
    done = start("--help")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "my_package.plugin:PLUGIN" in done.stderr
