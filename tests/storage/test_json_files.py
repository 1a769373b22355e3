"""JSON of users: damage of any kind is a ValueError with a short message; values as types."""

import dataclasses
import json
from collections.abc import Mapping

import pytest

from anytime_jax.storage.json_files import as_type, load_json, parse_json, read_json

DAMAGED = {
    "cut": b'{"a": ',
    "binary": bytes(range(128, 256)) * 1000,
    "deep": b"[" * 100_000,
    "long number": b"1" * 5000,
    "byte order mark": b"\xef\xbb\xbf{}",
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damage_is_a_short_value_error(case, tmp_path):
    path = tmp_path / "x.json"
    path.write_bytes(DAMAGED[case])
    with pytest.raises(ValueError) as error:
        load_json(path)
    assert len(repr(error.value)) < 200
    assert read_json(path) is None


def test_text_and_bytes_are_parsed():
    assert parse_json('{"a": "é"}') == parse_json('{"a": "é"}'.encode()) == {"a": "é"}


@dataclasses.dataclass(frozen=True)
class Part:
    place: tuple[str, float]
    size: int | str = "all"


@dataclasses.dataclass(frozen=True)
class Whole:
    parts: tuple[Part, ...]
    by_name: Mapping[str, Part]
    best: Part | None = None


def test_value_is_read_as_it_was_written():
    one, two = Part(("a", 0.5)), Part(("b", 1), 3)
    for whole in (Whole((one, two), {"x": one}), Whole((), {}, two)):
        assert as_type(Whole, json.loads(json.dumps(dataclasses.asdict(whole)))) == whole
    assert as_type(Part, {"place": ["a", 1], "size": 2, "later": 0}) == Part(("a", 1), 2)


@pytest.mark.parametrize(
    "value",
    [
        *([], None, {}, {"place": ["a"]}, {"place": ["a", "b"]}, {"place": ["a", True]}),
        *({"place": "ab"}, {"place": ["a", 1], "size": 1.5}, {"place": ["a", 1], "size": None}),
    ],
)
def test_value_of_another_type_is_refused(value):
    with pytest.raises(ValueError):
        as_type(Part, value)
