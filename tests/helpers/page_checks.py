"""Checks of a page: its code blocks, its links, and its command lines against the commands."""

import re
import shlex

import doc_blocks
from paths import REPOSITORY

from anytime_jax import plugins
from anytime_jax.commands import argument_parser, dispatch
from anytime_jax.config import python_files
from anytime_jax.config.run_settings import all_settings

# What a test of the documentation does not have.
NEEDS = {
    *("C4", "GPUs", "a TPU slice", "Slurm", "Kubernetes", "gcloud", "hours", "a package index"),
    *("the compiler of a TPU or GPU", "PyTorch", "a public model", "the hub"),
}
# A line of an output does not begin like this.
SHELL = re.compile(
    r"^(\$ |(\S*/)?(python3?[\d.]* -|anytime )|pip |make |git |pytest |sbatch |gcloud |kubectl "
    r"|export [A-Z_]+=|[A-Z_]+=\S+ |launch/)",
    re.MULTILINE,
)
COMMAND = re.compile(
    r"^ *\$? *\S*(?:anytime (?P<name>[a-z][\w-]*)|python -m anytime_jax\.main) *(?P<argv>.*)",
    re.MULTILINE,
)
SITE = (REPOSITORY / "mkdocs.yml").read_text("utf-8")


def check_blocks(page):
    """Each block is run, or says what it needs; each mark is that of a block."""
    blocks = doc_blocks.read_blocks(page)
    for block in blocks:
        assert block.language in ("", "bash", "python", "mermaid"), f"{block}: write bash"
        if not block.language:
            assert not SHELL.search(block.code), f"{block}: write bash after the ticks"
            assert not block.mark, f"{block}: an output has no mark"
        assert "python -m anytime_jax " not in block.code, f"{block}: write anytime COMMAND"
        if block.mark == "needs":
            assert {*block.reason.split(", ")} <= NEEDS, block
        if block.mark == "run by":
            assert (REPOSITORY / block.reason).exists(), block
    marks = len(re.findall(r"^ *<!-- *(?:needs|run by)\b", page.read_text("utf-8"), re.M))
    assert marks == sum(bool(block.mark) for block in blocks)


def headings(page):
    """The anchors of a page's headings."""
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def is_in_site(file):
    """Whether the site, which has the files of docs/ but for some, has a file."""
    excluded = re.findall(
        r"^  (\S+)$", SITE.partition("exclude_docs: |\n")[2].partition("theme:")[0], re.M
    )
    assert excluded
    if not file.is_relative_to(REPOSITORY / "docs"):
        return False
    name = file.relative_to(REPOSITORY / "docs").as_posix()
    return not any(name == x or (x.endswith("/") and name.startswith(x)) for x in excluded)


def check_links(page):
    """Links lead to files and headings, and from the site into it."""
    for link in re.findall(r"\]\(([^):]+)\)", page.read_text("utf-8")):
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        assert target.exists(), link
        assert not is_in_site(page) or is_in_site(target.resolve()), link
        assert not anchor or anchor in headings(target), link


def read_commands(path):
    """The command and the arguments of every command line in the code blocks of a page."""
    text = path.read_text("utf-8").replace("\\\n", " ")
    if path.suffix == ".md":
        text = "\n".join(text.split("\n```")[1::2])  # the code blocks
    for match in COMMAND.finditer(text):
        name = match["name"] or "train"
        words = re.sub(r'"\$@"|\$\{.*\}', "", match["argv"].split(" >")[0])
        words = re.sub(r"\$\w+", "8", words)
        yield name, tuple(shlex.split(words, comments=True))


def check_command_lines(path):
    """Each command line of a page or of a configuration is one that the command takes."""
    for name, argv in read_commands(path):
        if any(word.startswith("--source=my_") for word in argv):
            continue  # its options are fields of a class that test_extend.py writes, and runs
        arguments = argument_parser.parse(dispatch.import_command(name), name, argv)
        if name == "train" and "=my_" not in " ".join(argv):  # test_extend.py runs those
            for word in arguments.overrides:
                assert word.removeprefix("--config.").split("=")[0] in all_settings(), word
        for file in getattr(arguments, "config", None) or []:
            if not file.startswith("my_"):  # a file of the page's reader
                python_files.find("config", file.partition(":")[0], *plugins.folders())


CHECKS = [check_blocks, check_links, check_command_lines]
