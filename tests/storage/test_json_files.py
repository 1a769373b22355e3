"""JSON of users: damage of any kind is a ValueError with a short message."""

import pytest

from anytime_jax.storage.json_files import load_json, parse_json, read_json

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
