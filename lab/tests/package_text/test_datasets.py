"""Datasets of made-up archives, the list of packages, and failed downloads."""

import json
import random
import shutil
import subprocess

import pytest
from package_archives import write_sdist, write_wheel

from anytime_jax.corpus.vocabulary_files import load_vocabulary
from anytime_jax.data.dataset_info import load_dataset
from anytime_jax.data.token_arrays import TokenReader
from anytime_jax.errors import InputError
from anytime_lab.package_text import datasets, download, package_text_command
from anytime_lab.package_text.download import LANGUAGES, Package, read_list

SIZE = 300  # of the vocabulary
PACKAGES = [
    Package("known", "1", "python", "train", "MIT"),
    Package("twin", "1", "python", "train", "MIT"),
    Package("chosen", "2.0", "python", "selection", "MIT"),
    Package("judged", "3", "python", "report", "MIT"),
    Package("known", "1", "english", "train", "BSD-3-Clause"),
    Package("told", "1", "english", "report", "BSD-3-Clause"),
]


def make_lines(name, count):
    """Lines of random letters; those of different names have no run of tokens in common."""
    rng = random.Random(name)
    words = (
        " ".join("".join(rng.choices("abcdefgh", k=5)) for _ in range(8)) for _ in range(count)
    )
    return [f"{line}\n" for line in words]


def make(output, packages=PACKAGES):
    """Makes the datasets, with a validation split of training text that has so few documents."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets, "_UNUSED_FRACTION", 0.3)
        return datasets.make_datasets(packages, output, SIZE)


SHARED = make_lines("shared", 6)  # of the report, and of each other set
REPEATED = make_lines("repeated", 6)  # of all training packages
BEGINNING = " ".join("".join(make_lines("beginning", 3)).split())  # of lines that end otherwise


def make_archives(output):
    """Writes an archive for each package where a download puts it."""
    for package in PACKAGES:
        lines = make_lines(f"{package.name} {package.language}", 40)
        is_train = package.role == "train"
        lines[20:20] = SHARED + (REPEATED if is_train else [])
        lines[10:10] = [f"{BEGINNING} {' '.join(package.name)}\n"]
        folder = output / "archives" / package.folder
        folder.mkdir(parents=True)
        if package.language == "python":
            files = {f"{package.name}/m.py": "".join(lines), "copy.py": "".join(SHARED)}
            files["rest.py"] = "".join([*SHARED, "little is left\n"])
            files |= {f"{i}.py": "".join(make_lines(f"{package.name} {i}", 9)) for i in range(9)}
            write_wheel(folder / f"{package.name}.whl", files)
        else:
            pages = {f"docs/{i}.rst": "".join(make_lines(f"page {i}", 9)) for i in range(9)}
            files = {"docs/index.rst": "".join(lines), **(pages if is_train else {})}
            write_sdist(folder / f"{package.name}.tar.gz", files)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    output = tmp_path_factory.mktemp("made") / "packages"
    make_archives(output)
    return output, make(output)


def read_split(path, split):
    info = load_dataset(path)
    tokens = info.splits[split].tokens
    ids = TokenReader([info], split).read([0], tokens)[0] if tokens else []
    return load_vocabulary(info.vocabulary_path).decode(ids)


def test_training_text_has_no_line_of_validation_text_nor_of_earlier_training_text(made):
    output, _ = made
    splits = ("train", "validation")
    training = [read_split(output / x, split) for x in ("python", "english") for split in splits]
    report = read_split(output / "report/python/judged", "validation")
    for line in SHARED[1:-1]:  # a run does not begin and end with the first and last line
        assert not any(line in text for text in training)
        assert line in report
        assert line not in read_split(output / "selection/python/chosen", "validation")
    for line in REPEATED[1:-1]:
        assert sum(text.count(line) for text in training) == 1
    for name in ("known python", "twin python", "known english"):
        assert all(any(line in text for text in training) for line in make_lines(name, 40))


def test_validation_packages_have_no_training_text(made):
    output, _ = made
    for package in PACKAGES:
        if package.role != "train":
            info = load_dataset(output / package.role / package.language / package.name)
            assert info.splits["train"].tokens == 0
            assert info.splits["validation"].documents > 0
    files = {str(x.relative_to(output)) for x in output.glob("**/anytime_jax.json")}
    assert files == {
        "python/anytime_jax.json",
        "english/anytime_jax.json",
        "selection/python/chosen/anytime_jax.json",
        "report/python/judged/anytime_jax.json",
        "report/english/told/anytime_jax.json",
    }
    models = {x.read_bytes() for x in output.glob("**/vocabulary.model")}
    assert len(models) == 1


def test_summary_counts_what_is_kept_and_what_is_left_in_common(made):
    output, summary = made
    for package in summary["packages"]:
        path = output / "text" / package["role"] / package["language"] / f"{package['name']}.jsonl"
        texts = [json.loads(line)["text"] for line in path.read_text("utf-8").splitlines()]
        assert package["documents"] == len(texts)
        assert min(map(len, texts)) >= 200
        assert package["kept_bytes"] == sum(map(len, texts)) <= package["distinct_bytes"]
        assert len(package["sha256"]) == 64
    repeated = {x["role"] for x in summary["packages"] if x["repeated_tokens"]}
    assert repeated == {"train", "selection", "report"}
    total = summary["text"]["train/python"]
    assert total["packages"] == 2
    assert 0 < total["removed_share"] < 0.5
    assert total["repeated_share"] == total["repeated_tokens"] / total["tokens"] < 0.05


def test_the_same_archives_give_the_same_bytes(made, tmp_path):
    output, summary = made
    make_archives(tmp_path)
    assert make(tmp_path) == summary
    for path in sorted(output.glob("**/*.jsonl")) + sorted(output.glob("**/*.bin")):
        assert path.read_bytes() == (tmp_path / path.relative_to(output)).read_bytes()
    for path in output.glob("**/anytime_jax.json"):
        info, again = (
            load_dataset(x / path.parent.relative_to(output)) for x in (output, tmp_path)
        )
        assert info.fingerprint == again.fingerprint


def test_a_complete_output_is_returned_and_another_list_refused(made, tmp_path):
    output, summary = made
    shutil.copytree(output, tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy" / "archives")
    assert make(tmp_path / "copy") == summary
    with pytest.raises(InputError, match="text of other packages; give another --output"):
        make(tmp_path / "copy", PACKAGES[1:])


def write_list(path, *rows):
    path.write_text("\n".join(["name,version,language,role,licence", *rows]) + "\n")
    return path


def test_published_list_is_valid_and_has_enough_packages_for_validation():
    counts = {}
    for package in read_list():
        key = package.role, package.language
        counts[key] = counts.get(key, 0) + 1
    assert counts.pop(("train", "python")) >= 30
    assert counts.pop(("train", "english")) >= 20
    assert counts == {
        ("selection", "python"): 12,
        ("report", "python"): 32,
        ("selection", "english"): 4,
        ("report", "english"): 8,
    }


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["a,1,python,train,MIT", "a,1,english,report,MIT"], "a has two roles"),
        (["a,1,python,train,MIT", "a,2,python,train,MIT"], "a is listed twice for python"),
        (["a,1,rust,train,MIT"], "rust"),
        (["A.b,1,python,train,MIT"], "'A.b' is not a package's name in normal form"),
        (["a,1,python,train"], "a lacks a column"),
    ],
)
def test_bad_lists_are_refused_in_one_line(rows, message, tmp_path, rejected):
    path = write_list(tmp_path / "list.csv", *rows)
    output = tmp_path / "out"
    assert message in rejected(package_text_command, f"--output={output}", f"--packages={path}")
    assert not output.exists()


def test_list_without_training_text_of_a_language_is_refused(tmp_path):
    rest = [x for x in PACKAGES if x.language != "english" or x.role != "train"]
    with pytest.raises(InputError, match="english"):
        make(tmp_path / "out", rest)
    assert not (tmp_path / "out").exists()


def test_failed_download_is_one_line_and_keeps_nothing(tmp_path, rejected, monkeypatch):
    def fail(command, **options):
        assert command[3:5] == ["download", "--quiet"]
        errors = f"WARNING: retrying\nERROR: No matching distribution found for {command[-1]}\n"
        return subprocess.CompletedProcess(command, 1, None, errors)

    monkeypatch.setattr(download.subprocess, "run", fail)
    path = write_list(tmp_path / "list.csv", "a,1,python,train,MIT", "b,1,english,train,MIT")
    output = tmp_path / "out"
    error = rejected(package_text_command, f"--output={output}", f"--packages={path}")
    assert "a 1 (python) cannot be downloaded" in error
    assert "No matching distribution found for a==1" in error
    assert not [x for x in output.glob("archives/**/*") if x.name not in LANGUAGES]
