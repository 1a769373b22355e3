"""Command lines and links of the documentation and configurations, against the commands."""

import json
import re
import shlex

import pytest
from doc_blocks import PAGES
from paths import REPOSITORY

from anytime_jax.commands import command_line, dispatch
from anytime_jax.config import python_files, schema
from anytime_lab import loss_by_position, weight_decay_regrets
from anytime_lab.package_text import package_text_command
from anytime_lab.width import best_peaks

CONFIGS = sorted([*python_files.SHIPPED.glob("*.py"), *python_files.SHIPPED_STUDIES.glob("*.py")])
EXAMPLE = REPOSITORY / "docs/examples/lm_eval"
SITE = (REPOSITORY / "mkdocs.yml").read_text("utf-8")
COMMAND = re.compile(r"^ *\$? *\S*python -m anytime_jax([. ])([\w.]+) *(.*)", re.MULTILINE)

# What a module is that is run by its own name, after `anytime_jax.`
PROGRAMS = {
    "main": "train",
    "lab.weight_decay_regrets": "weight_decay_regrets",
    "lab.loss_by_position": "loss_by_position",
    "lab.package_text": "package_text",
    "lab.width.best_peaks": "best_peaks",
}
MODULES = {
    "best_peaks": best_peaks,
    "weight_decay_regrets": weight_decay_regrets,
    "loss_by_position": loss_by_position,
    "package_text": package_text_command,
}


def import_command(name):
    return MODULES.get(name) or dispatch.import_command(name)


def read_commands(path):
    """The command and the arguments of every command line in the code blocks of a page."""
    text = path.read_text("utf-8").replace("\\\n", " ")
    if path.suffix == ".md":
        text = "\n".join(text.split("\n```")[1::2])  # the code blocks
    for match in COMMAND.finditer(text):
        name = match[2] if match[1] == " " else PROGRAMS[match[2]]
        words = re.sub(r'"\$@"|\$\{.*\}', "", match[3].split(">")[0])
        words = re.sub(r"\$\w+", "8", words)
        yield name, tuple(shlex.split(words, comments=True))


COMMANDS = sorted({line for path in (*PAGES, *CONFIGS) for line in read_commands(path)})


def test_every_command_has_an_example_in_the_documentation():
    assert {name for name, _ in COMMANDS} == {*dispatch.COMMANDS, *PROGRAMS.values()}


@pytest.mark.parametrize(("name", "argv"), COMMANDS)
def test_documented_command_line_is_valid(name, argv, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    if any(word.startswith("--source=my_") for word in argv):
        return  # its options are fields of a class that test_extend.py writes, and runs
    arguments = command_line.parse(import_command(name), name, argv)
    if name == "train" and "=my_" not in " ".join(argv):  # test_extend.py runs those
        for word in arguments.overrides:
            assert word.removeprefix("--config.").split("=")[0] in schema.all_settings()
    for file in getattr(arguments, "config", None) or []:
        if not file.startswith("my_"):  # a file of the page's reader
            python_files.find("config", file.partition(":")[0], "configuration", "study")


def headings(page):
    """The anchors of a page's headings."""
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def site_lacks(file):
    """Whether the site, which has the files of docs/ but for some, lacks a file."""
    excluded = re.findall(
        r"^  (\S+)$", SITE.partition("exclude_docs: |\n")[2].partition("theme:")[0], re.M
    )
    assert excluded
    if not file.is_relative_to(REPOSITORY / "docs"):
        return True
    name = file.relative_to(REPOSITORY / "docs").as_posix()
    return any(name == x or (x.endswith("/") and name.startswith(x)) for x in excluded)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_lead_to_files_and_headings(page):
    for link in re.findall(r"\]\(([^):]+)\)", page.read_text("utf-8")):
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        assert target.exists(), link
        assert site_lacks(page) or not site_lacks(target.resolve()), link
        assert not anchor or anchor in headings(target), link


def test_lm_eval_task_reads_the_documents_beside_it():
    yaml = pytest.importorskip("yaml")
    page = (REPOSITORY / "docs/export.md").read_text("utf-8")
    task = yaml.safe_load((EXAMPLE / "anytime_python.yaml").read_text("utf-8"))
    assert f"--tasks {task['task']}" in page
    file = REPOSITORY / task["dataset_kwargs"]["data_files"][task["test_split"]]
    assert file == EXAMPLE / "functions.jsonl"
    texts = [json.loads(line)["text"] for line in file.read_text("utf-8").splitlines()]
    assert len(set(texts)) == len(texts) == 30  # as the page says
    assert max(map(len, texts)) < 200  # so none has more than 128 tokens in a vocabulary of 512
