"""The built-in corpus: the sources of a fixed list of packages, the same wherever they are."""

import hashlib
import pickle
import re
from pathlib import Path

import pytest
from paths import REPOSITORY

from anytime_jax.corpus import builtin_source
from anytime_jax.corpus.builtin_source import PACKAGES, BuiltinSource, builtin_differences
from anytime_jax.corpus.preparation import prepare
from anytime_jax.corpus.validation_split import assign_split
from anytime_jax.errors import InputError
from configs import quickstart

TEXT_SHA256 = "6e403e99665d33285c7ccc66c169da9d8a54edd21a987b1cca5c0f35aa203434"


def read_files(parts):
    return [Path(file.path) for part in parts for file in part.files]


def test_corpus_is_the_same_at_every_size():
    source = BuiltinSource(0.5, validation_fraction=0.3)
    assert pickle.dumps(source.parts()) == pickle.dumps(source.parts())
    texts = [text for part in source.parts() for text in part.documents()]
    size = sum(len(text.encode()) for text in texts)
    assert 0.5e6 <= size < 1.5e6
    assert len(set(texts)) == len(texts)
    splits = [assign_split(text, 0.3) for text in texts]
    assert {"train", "validation"} == set(splits)
    files = read_files(source.parts())
    assert files != sorted(files)
    assert read_files(BuiltinSource(0.6).parts())[: len(files)] == files


def test_text_of_the_pinned_versions_is_the_same_on_every_machine():
    if differences := builtin_differences():
        pytest.skip(differences)
    digest = hashlib.sha256()
    for path in builtin_source._ordered_files():
        digest.update(path.read_bytes())
    assert digest.hexdigest() == TEXT_SHA256


@pytest.mark.slow
def test_dataset_of_the_quickstart_has_the_fingerprint_of_its_page(tmp_path):
    if differences := builtin_differences():
        pytest.skip(differences)
    config = quickstart.get_config()
    source = BuiltinSource(config.data.builtin_megabytes)
    dataset = prepare(source, tmp_path / "data", vocabulary=config.model.vocab_size)
    page = (REPOSITORY / "docs" / "tutorials" / "first_run.md").read_text("utf-8")
    assert set(re.findall(r"fingerprint ([0-9a-f]{12})\b", page)) == {dataset.fingerprint[:12]}


def test_versions_are_those_of_the_constraints():
    pinned = {}
    for line in (REPOSITORY / "constraints.txt").read_text("utf-8").splitlines():
        if match := re.match(r"([\w.-]+)==(\S+)", line):
            pinned.setdefault(re.sub(r"[-_.]+", "-", match[1]).lower(), set()).add(match[2])
    assert {name: {version} for name, version in PACKAGES.items()} == {
        name: pinned.get(name) for name in PACKAGES
    }


def install(site, name, version, files):
    """Writes an installed package whose RECORD lists its files."""
    for file in files:
        path = site / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'"""The text of {file} of {name}."""\n' * 9)
    about = site / f"{name}-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (about / "RECORD").write_text("".join(f"{name}/{file},,\n" for file in files))


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of installed packages, one of them as it should be, and the only one."""
    site = tmp_path / "site"
    monkeypatch.setattr("sys.path", [str(site)])
    monkeypatch.setattr(builtin_source, "PACKAGES", {"first": "1.0", "second": "2.0"})
    install(site, "first", "1.0", [f"{x}.py" for x in "abcdefgh"])
    return site


def test_what_is_no_text_or_repeated_is_left_out(site):
    install(site, "second", "2.0", [f"{x}.py" for x in "abcde"])
    texts = {"a": b"# the same", "b": b"# the same", "c": b"", "d": b"\xff", "e": b"# \0"}
    for name, text in texts.items():
        (site / "second" / f"{name}.py").write_bytes(text)
    size = sum(path.stat().st_size for path in site.glob("first/*.py")) + len(texts["a"])
    files = read_files(BuiltinSource(size / 1e6).parts())
    assert len(files) == 9
    assert {path.name for path in files if path.parent.name == "second"} in ({"a.py"}, {"b.py"})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("missing", "no second"),
        ("version", "second 2.1, not 2.0"),
        ("editable", "second without a list of files"),
        ("no files", "second without 1 of 2 files"),
    ],
)
def test_what_differs_is_named(site, change, named):
    version = "2.1" if change == "version" else "2.0"
    if change != "missing":
        install(site, "second", version, ["a.py", "b.py"])
    about = site / f"second-{version}.dist-info"
    if change == "editable":
        (about / "RECORD").write_text("__editable___second_finder.py,,\nsecond.pth,,\n")
    elif change == "no files":
        (site / "second" / "b.py").unlink()
    assert builtin_differences() == named
    assert named in builtin_source.difference_note()
    texts = [text for part in BuiltinSource(1e-4).parts() for text in part.documents()]
    assert texts
    with pytest.raises(InputError, match=named):
        BuiltinSource(1).parts()


def test_no_megabytes_are_refused():
    with pytest.raises(InputError, match="megabytes"):
        BuiltinSource(0).parts()
