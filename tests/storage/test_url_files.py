"""Files at addresses: listings, and reads that survive faults of a local server."""

import random
import sys

import pytest
from hub_server import PAGE_FILES, local_hub

from anytime_jax.errors import BucketError, InputError
from anytime_jax.storage import url_files

CONTENT = random.Random(0).randbytes(300_000)
KINDS = ("hf://datasets/owner/name", "{url}/files", "{url}/files_whole")


@pytest.fixture
def hub(tmp_path):
    (tmp_path / "en").mkdir()
    for i in range(PAGE_FILES + 2):
        (tmp_path / "en" / f"train.{i}.json.gz").write_bytes(CONTENT[: 100 * i + 100])
    (tmp_path / "en" / "large.bin").write_bytes(CONTENT)
    with local_hub(tmp_path) as server:
        yield server


def test_glob_finds_the_files_of_all_pages_with_one_listing(hub):
    found = url_files.find("hf://datasets/owner/name/en/train.*.json.gz")
    assert sorted(found) == [
        (f"hf://datasets/owner/name/en/train.{i}.json.gz", 100 * i + 100)
        for i in range(PAGE_FILES + 2)
    ]
    trees = [request for request in hub.requests if request.endswith("/tree/main/en")]
    assert len(trees) == 2
    assert not any("cdn" in request for request in hub.requests)


def test_folder_and_file_are_found(hub):
    folder = url_files.find("hf://datasets/owner/name/en")
    assert len(folder) == PAGE_FILES + 3
    assert url_files.find(f"{folder[0][0]}") == [folder[0]]
    assert url_files.find(f"{hub.url}/files/en/large.bin") == [
        (f"{hub.url}/files/en/large.bin", len(CONTENT))
    ]


def test_glob_reads_a_page_of_links(hub):
    names = [name for name, _ in url_files.find(f"{hub.url}/files/en/train.*.json.gz")]
    assert sorted(names) == [f"{hub.url}/files/en/train.{i}.json.gz" for i in range(PAGE_FILES + 2)]


@pytest.mark.parametrize("kind", KINDS)
def test_read_survives_errors_and_transfers_that_are_cut(hub, kind):
    address = f"{kind.format(url=hub.url)}/en/large.bin"
    hub.faults += [None, "cut", "500", None, "cut", "cut"]
    with url_files.open_address(address) as file:
        content = b"".join(iter(lambda: file.read(50_000), b""))
    assert content == CONTENT
    assert "500" not in hub.faults


def test_seeks_read_only_what_is_asked(hub):
    with url_files.open_address(f"{hub.url}/files/en/large.bin", buffered=False) as file:
        assert file.seek(-8, 2) == len(CONTENT) - 8
        assert file.read(8) == CONTENT[-8:]
        file.seek(1000)
        assert file.read(10) == CONTENT[1000:1010]
    assert sum(request.startswith("GET") for request in hub.requests) == 2


def test_tries_are_bounded(hub):
    hub.faults += ["500"] * 100
    with (
        pytest.raises(BucketError, match="4 tries"),
        url_files.open_address(f"{hub.url}/files/en/large.bin") as file,
    ):
        file.read()
    assert len(hub.faults) == 96


@pytest.mark.parametrize(
    ("address", "named"),
    [
        ("hf://datasets/owner/name/fr", "name/fr"),
        ("hf://datasets/nobody/name/*.json", "nobody"),
        ("{url}/files/nothing.json", "nothing.json"),
        ("http://127.0.0.1:1/a.json", "3 tries"),
        ("nosuch://bucket/a.json", "nosuch://"),
    ],
)
def test_address_that_cannot_be_listed_is_bad_input(hub, address, named):
    with pytest.raises(InputError, match=named):
        url_files.find(address.format(url=hub.url))


def test_missing_file_is_none_and_a_refusal_is_not_repeated(hub):
    for kind in KINDS:
        root = kind.format(url=hub.url)
        assert url_files.read_if_there(f"{root}/en/nothing") is None
        assert url_files.read_if_there(f"{root}/en/train.0.json.gz") == CONTENT[:100]
    assert len([x for x in hub.requests if x == "HEAD /files/en/nothing"]) == 1


@pytest.mark.parametrize("scheme", ["hf", "https"])
def test_missing_package_names_the_extra(hub, scheme):
    with pytest.MonkeyPatch.context() as patch:
        for name in ("aiohttp", "huggingface_hub"):
            patch.setitem(sys.modules, name, None)
        patch.delitem(sys.modules["fsspec.registry"]._registry, scheme, raising=False)
        with pytest.raises(InputError, match=r"anytime_jax\[hub\]"):
            url_files.find(f"{scheme}://a/b")


@pytest.mark.parametrize(("scheme", "package"), [("s3", "s3fs"), ("gs", "gcsfs")])
def test_missing_package_of_a_bucket_is_named(scheme, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    url_files._open_file_system.cache_clear()
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, scheme, raising=False)
    with pytest.raises(InputError, match=rf"{scheme}://.*{package}"):
        url_files.find(f"{scheme}://bucket/text.jsonl")
