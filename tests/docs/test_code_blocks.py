"""Code blocks of the documentation: a test runs each, or a mark says what it needs."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import doc_blocks
import pytest
from forked_starts import environment
from paths import REPOSITORY

# What a test of the documentation does not have.
NEEDS = {
    *("C4", "GPUs", "a TPU slice", "Slurm", "Kubernetes", "gcloud", "hours", "a package index"),
    *("the compiler of a TPU or GPU", "PyTorch", "a public model", "the hub"),
}
# A line of an output does not begin like this.
COMMAND = re.compile(
    r"^(\$ |(\S*/)?python3?[\d.]* -|pip |make |git |pytest |anytime |sbatch |gcloud |kubectl "
    r"|export [A-Z_]+=|[A-Z_]+=\S+ |launch/)",
    re.MULTILINE,
)
# Pages that train the quickstart from its beginning; the others find it trained to 4x.
BEGINNINGS = {"README.md", "docs/index.md", "docs/tutorials/first_run.md"}
# test_library_page.py runs that page, whose blocks are several programs.
OTHERS = {"docs/library.md"}
RUN = sorted(
    {
        block.page
        for block in doc_blocks.BLOCKS
        if block.language in ("bash", "python") and not block.mark
        if doc_blocks.name_of(block.page) not in OTHERS
    }
)


def block_id(block):
    return str(block)


@pytest.mark.parametrize("block", doc_blocks.BLOCKS, ids=block_id)
def test_block_is_run_or_says_what_it_needs(block):
    assert block.language in ("", "bash", "python", "mermaid"), "write commands as bash"
    if not block.language:
        assert not COMMAND.search(block.code), "these are commands: write bash after the ticks"
        assert not block.mark, "an output has no mark"
    if block.mark == "needs":
        assert {*block.reason.split(", ")} <= NEEDS
    if block.mark == "run by":
        assert (REPOSITORY / block.reason).exists()


@pytest.mark.parametrize("page", doc_blocks.PAGES, ids=doc_blocks.name_of)
def test_every_mark_is_that_of_a_block(page):
    marks = len(re.findall(r"^ *<!-- *(?:needs|run by)\b", page.read_text("utf-8"), re.M))
    assert marks == sum(bool(block.mark) for block in doc_blocks.read_blocks(page))


def write_executable(path: pathlib.Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def make_checkout(folder: pathlib.Path, updates: int = 40) -> None:
    """A copy of the repository with an environment, a smaller quickstart and some text.

    The environment is that of the tests: `pip` and `python -m venv` do nothing in it.
    """
    for name in ("configs", "launch", "docs"):
        shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("figures"))
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(REPOSITORY / name, folder)
    quickstart = folder / "configs" / "quickstart.py"
    quickstart.write_text(doc_blocks.shorten(quickstart.read_text(), updates))
    own_text = folder / "configs" / "own_text.py"
    own_text.write_text(own_text.read_text().replace("160 *", "8 *"))
    python = f'#!/bin/sh\n[ "$1 $2" = "-m venv" ] || exec "{sys.executable}" "$@"\n'
    for name, program in {"python": python, "python3": python, "pip": "#!/bin/sh\n"}.items():
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
        arguments, cwd=folder, env=environment() | paths, text=True, timeout=1_800,
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


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=doc_blocks.name_of)
def test_page_runs(page, tmp_path, request):
    folder = tmp_path / "anytime_jax"
    if doc_blocks.name_of(page) in BEGINNINGS:
        make_checkout(folder)
    else:
        shutil.copytree(request.getfixturevalue("trained"), folder, symlinks=True)
    if commands := doc_blocks.runnable(page, "bash"):
        run_program(["bash", "-euxo", "pipefail", "-c", commands], folder)
    if program := doc_blocks.runnable(page, "python"):
        run_program(["python", "-c", program], folder)


def test_commands_of_the_readme_run(starts, tmp_path):
    """With fewer updates, and without a shell and what it installs."""
    folder = tmp_path / "anytime_jax"
    make_checkout(folder, updates=10)
    readme = doc_blocks.runnable(REPOSITORY / "README.md", "bash")
    lines = [shlex.split(line, comments=True) for line in readme.splitlines()]
    for words in filter(None, lines):
        assert words[0] in ("make", "pip", "python"), words
        name, argv = "train", ["--config=configs/quickstart.py"]  # of `make quickstart`
        if words[0] == "python":
            name, *argv = words[3:]
        if words[0] != "pip":
            start = starts.launch(*argv, command=name, folder=folder)
            assert start.wait(600) == 0, start.output
