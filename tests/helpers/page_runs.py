"""Runs of the commands and programs of a page, in a copy of the repository."""

import os
import pathlib
import shutil
import subprocess
import sys

import doc_blocks
import pytest
from doc_blocks import LABORATORY
from forked_starts import environment
from paths import REPOSITORY

# Pages that train the quickstart from its beginning; the others find it trained to 4x.
BEGINNINGS = {"README.md", "docs/index.md", "docs/tutorials/first_run.md"}


def write_executable(path: pathlib.Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def make_checkout(folder: pathlib.Path, updates: int = 40) -> None:
    """A copy of the repository with an environment, a smaller quickstart and some text.

    The environment is that of the tests: `pip` and `python -m venv` do nothing in it.
    """
    for name in ("configs", "launch", "docs"):
        shutil.copytree(REPOSITORY / name, folder / name)
    shutil.copytree(LABORATORY / "evidence", folder / "lab" / "evidence")
    for name in ("Makefile", "constraints.txt", "pyproject.toml", "lab/pyproject.toml"):
        shutil.copy(REPOSITORY / name, folder / name)
    quickstart = folder / "configs" / "quickstart.py"
    quickstart.write_text(doc_blocks.shorten(quickstart.read_text(), updates))
    own_text = folder / "configs" / "own_text.py"
    own_text.write_text(own_text.read_text().replace("160 *", "8 *"))
    python = f'#!/bin/sh\n[ "$1 $2" = "-m venv" ] || exec "{sys.executable}" "$@"\n'
    anytime = f'#!/bin/sh\nexec "{sys.executable}" -m anytime_jax "$@"\n'
    programs = {"python": python, "python3": python, "pip": "#!/bin/sh\n", "anytime": anytime}
    for name, program in programs.items():
        write_executable(folder / ".venv" / "bin" / name, program)
    (folder / ".venv" / ".installed").touch()
    write_text(folder / "my_text")


def write_text(folder: pathlib.Path) -> None:
    """Files of text: the language reference that comes with Python."""
    from pydoc_data.topics import topics

    folder.mkdir()
    for i, text in enumerate(topics.values()):
        (folder / f"{i}.txt").write_text(text, "utf-8")


def run_program(arguments, folder):
    paths = {"PATH": f"{folder}/.venv/bin:{os.environ['PATH']}", "HOME": str(folder / "home")}
    done = subprocess.run(
        arguments, cwd=folder, env=environment() | paths, text=True, timeout=7_200,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3_000:]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A checkout in which the quickstart has been trained."""
    folder = tmp_path_factory.mktemp("checkout") / "anytime_jax"
    make_checkout(folder)
    run_program(["make", "quickstart"], folder)
    return folder


def run_page(page, folder, request):
    """Runs the blocks of a page in a folder that becomes a checkout."""
    if doc_blocks.name_of(page) in BEGINNINGS:
        make_checkout(folder)
    else:
        shutil.copytree(request.getfixturevalue("trained"), folder, symlinks=True)
    if commands := doc_blocks.runnable(page, "bash"):
        run_program(["bash", "-euxo", "pipefail", "-c", commands], folder)
    if program := doc_blocks.runnable(page, "python"):
        run_program(["python", "-c", program], folder)
