"""Documents of made-up wheels and sdists."""

import hashlib

import pytest
from package_archives import write_sdist, write_wheel

from anytime_jax.errors import InputError
from anytime_lab.package_text import documents
from anytime_lab.package_text.documents import is_prose, read_documents, remove_duplicates
from anytime_lab.package_text.download import Package

CODE = "value = function(argument)\n" * 10
PROSE = "This is a page of the documentation, with whole sentences.\n" * 5


def read(archive, language="python", role="train"):
    found = read_documents(Package("p", "1", language, role, "MIT"), archive)
    return {x.path: x.text for x in found}


def test_python_documents_are_sources_of_usable_size_and_encoding(tmp_path):
    others = {
        "p/short.py": "x = 1\n",
        "p/long.py": CODE * 1000,
        "p/nul.py": CODE + "\0",
        "p/latin.py": CODE.encode() + b"\xe4",
        "p/mark.py": CODE + "\u2581",
        "p/data.txt": CODE,
    }
    wheel = write_wheel(tmp_path / "p.whl", {"p/a.py": CODE, "p/tests/b.py": CODE, **others})
    assert read(wheel) == {"p/a.py": CODE, "p/tests/b.py": CODE}


def test_english_documents_are_prose_below_a_folder_of_documentation(tmp_path):
    files = {
        "docs/a.rst": PROSE,
        "p/doc/b.txt": PROSE + "again\n",
        "docs/code.md": CODE,
        "docs/c.py": PROSE,
        "README.md": PROSE,
    }
    sdist = write_sdist(tmp_path / "p.tar.gz", files)
    assert read(sdist, "english") == {"docs/a.rst": PROSE, "p/doc/b.txt": PROSE + "again\n"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PROSE, True),
        ("* " + PROSE, True),
        (CODE, False),
        ("| a | b | c | d | e |\n" * 20, False),
        ("Это страница документации с целыми предложениями. " * 9, False),
        (PROSE + "ä" * 40, False),
    ],
)
def test_prose_is_told_from_code_tables_and_other_languages(text, expected):
    assert is_prose(text.encode()) is expected


def test_validation_packages_are_read_up_to_a_size_in_the_order_of_all(tmp_path, monkeypatch):
    wheel = write_wheel(tmp_path / "p.whl", {f"{i}.py": f"# {i}\n{CODE}" for i in range(20)})
    everything = list(read(wheel))
    hashes = [hashlib.sha256(f"p/{path}".encode()).hexdigest() for path in everything]
    assert len(hashes) == 20
    assert hashes == sorted(hashes)
    monkeypatch.setattr(documents, "VALIDATION_BYTES", 1500)
    assert list(read(wheel, role="report")) == everything[:5]
    assert list(read(wheel)) == everything


def test_the_first_of_equal_documents_is_kept():
    package = Package("p", "1", "python", "train", "MIT")
    texts = ["a", "b", "a", "c", "b"]
    found = [documents.Document(package, str(i), text) for i, text in enumerate(texts)]
    assert [x.path for x in remove_duplicates(found)] == ["0", "1", "3"]


@pytest.mark.parametrize("language", ["python", "english"])
def test_damaged_and_empty_archives_are_refused(tmp_path, language):
    damaged = tmp_path / "damaged"
    damaged.write_bytes(b"PK not an archive")
    with pytest.raises(InputError, match=r"damaged [\s\S]*delete its folder"):
        read(damaged, language)
    write = write_wheel if language == "python" else write_sdist
    with pytest.raises(InputError, match=f"has no {language} text"):
        read(write(tmp_path / "empty", {"readme": "x"}), language)
