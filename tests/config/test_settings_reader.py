"""Settings as fields of dataclasses: reading, changes by name, texts of the command line."""

import dataclasses
import pickle
from typing import Literal

import numpy as np
import pytest

from anytime_jax.checks import require_count
from anytime_jax.config import run_config, settings_reader
from anytime_jax.config.kinds import NOBODY
from anytime_jax.config.run_settings import Settings, all_settings
from anytime_jax.config.settings_reader import Text
from anytime_jax.errors import InputError
from configs import quickstart


@dataclasses.dataclass(frozen=True)
class Group:
    """A group.

    Attributes:
      count: how many
        there are.
      rate: how fast; of a run.
    """

    count: int
    rate: float = 0.5
    words: Literal["a", "b"] = "a"
    tokens: int | Literal["all"] = "all"
    flag: bool = False
    pair: tuple = ()
    text: str = ""
    place: str | tuple = ""
    decay: float | str = 0.0

    def __post_init__(self):
        require_count("count", self.count)


@dataclasses.dataclass(frozen=True)
class Whole:
    """Two groups."""

    one: Group
    name: str = "x"


def test_values_are_read_as_their_types():
    given = {"count": 3, "rate": 1, "pair": [1, [2]], "tokens": 7, "words": "b"}
    expected = Group(3, 1.0, "b", 7, pair=(1, (2,)))
    whole = settings_reader.read(Whole, {"one": given})
    assert whole == Whole(expected)
    assert type(whole.one.rate) is float
    assert settings_reader.read(Whole, settings_reader.to_dict(whole)) == whole


@dataclasses.dataclass(frozen=True)
class Named:
    """Values by name, or a word."""

    values: settings_reader.ByName | Literal["all"] = ()


def test_dictionary_is_read_as_pairs_of_names_and_values():
    pairs = (("a", 1), ("b", (("c", (2, 3)),)))
    for given in (dict(pairs), {"a": 1, "b": {"c": [2, 3]}}, [["a", 1], ["b", [["c", [2, 3]]]]]):
        assert settings_reader.read(Named, {"values": given}).values == pairs
    assert settings_reader.read(Named, {"values": Text("{'a': 1}")}).values == pairs[:1]
    assert settings_reader.read(Named, {"values": "all"}).values == "all"
    for given in ("a", ("ab",), (("a", 1, 2),), ((1, 2),), (("a", 1), ("a", 2))):
        with pytest.raises(InputError, match=r"^config\.values"):
            settings_reader.read(Named, {"values": given})


def test_numbers_of_numpy_are_read_as_pythons():
    given = {"count": np.int64(3), "rate": np.int32(1), "tokens": np.uint8(7)}
    given["pair"] = [np.float32(0.5), {"a": np.int64(2)}]
    expected = Group(3, 1.0, tokens=7, pair=(0.5, (("a", 2),)))
    assert repr(settings_reader.read(Group, given)) == repr(expected)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("count", x) for x in (True, 1.0, "1", -1, np.float64(1), np.True_)),
        *(("rate", x) for x in ("1", True, 10**400)),
        *(("words", "c"), ("tokens", "some"), ("tokens", True)),
        *(("flag", 1), ("flag", "False"), ("flag", np.False_)),
        *(("pair", "12"), ("text", b"x")),
    ],
)
def test_value_of_another_type_is_named(name, value):
    with pytest.raises(InputError) as caught:
        settings_reader.read(Whole, {"one": {"count": 1, name: value}})
    assert (caught.value.setting, caught.value.value) == (f"config.one.{name}", value)


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ({"one": {}}, "config.one.count"),
        ({"one": {"count": 1, "wrds": "a"}}, "config.one.wrds"),
        ({"one": 3}, "config.one"),
        ({"one": {"count": 1}, "x" * 300: 1}, "config"),  # a name of any length is cut
    ],
)
def test_unknown_and_missing_names_are_told(source, named):
    with pytest.raises(InputError, match=rf"^{named}\b.{{1,200}}$"):
        settings_reader.read(Whole, source)


def test_each_wrong_setting_is_an_error_of_its_own():
    with pytest.raises(InputError) as caught:
        settings_reader.read(Whole, {"one": {"rate": "x", "flag": 1}, "two": {}})
    names = [x.setting for x in caught.value.errors]
    assert sorted(names) == ["config.one.count", "config.one.flag", "config.one.rate", "config.two"]
    copy = pickle.loads(pickle.dumps(caught.value))  # as of another process
    assert [str(x) for x in copy.errors] == str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        *(("count", x, 1000) for x in ("1_000", "1e3")),
        *(("rate", "1", 1.0), ("rate", "-1e-3", -1e-3)),
        *(("words", "b", "b"), ("tokens", "all", "all"), ("tokens", "12", 12)),
        *(("flag", "True", True), ("flag", "false", False)),
        *(("pair", "[1, [2]]", (1, (2,))), ("pair", '{"0x": 8}', (("0x", 8),))),
        *(("text", "1", "1"), ("text", "", "")),
        ("text", '{"\\d"}', '{"\\d"}'),  # of which Python would warn
        *(("text", x, x) for x in ("None", "'a'", "True", "[1]", "4x")),
        *(("place", "data/x", "data/x"), ("place", '{"a": ("x", 1.0)}', (("a", ("x", 1.0)),))),
        *(("decay", "1", 1.0), ("decay", "g2", "g2")),
    ],
)
def test_text_is_parsed_as_the_type_of_its_setting(name, text, value):
    group = settings_reader.read(Group, {"count": 1, name: Text(text)})
    assert getattr(group, name) == value
    assert type(getattr(group, name)) is type(value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("count", x) for x in ("x", "1.5", "inf", "")),
        *(
            ("rate", "x"),
            ("tokens", "some"),
            ("flag", "yes"),
            ("pair", "1"),
            ("pair", "(1,"),
            ("pair", "f()"),
        ),
    ],
)
def test_text_that_is_none_of_its_type_is_refused(name, text):
    with pytest.raises(InputError) as caught:
        settings_reader.read(Whole, {"one": {"count": 1, name: Text(text)}})
    assert (caught.value.setting, caught.value.value) == (f"config.one.{name}", text)


@pytest.mark.parametrize("name", ["one", "two", "one.count.x", "one.rate.x", "name.x", ""])
def test_name_that_is_no_setting_is_refused(name):
    def read_changed():
        settings = {"one": {"count": 1}}
        settings_reader.change(Whole, settings, {name: Text("1")})
        return settings_reader.read(Whole, settings)

    with pytest.raises(InputError, match=rf"^config\.{name.partition('.')[0]}"):
        read_changed()


def test_entry_of_a_dictionary_is_changed_by_name():
    source = change(eval__sets={"web": "a"}, eval__sets__code=Text("b"))
    source = {**source, "data": {"mixture": {"x": Text("('c', 1)")}}}
    config = run_config.build(source, trust=NOBODY)
    assert config.sets == {"web": "a", "code": "b"}
    assert config.data.mixture == (("x", ("c", 1)),)


def test_meanings_are_those_of_the_docstring():
    assert settings_reader.meanings(Group) == {
        "count": "how many there are",
        "rate": "how fast; of a run",
    }
    missing = {name for name, x in all_settings().items() if not x.meaning}
    assert missing == set()


# Another kind


def change(**changes):
    source = quickstart.get_config().to_dict()
    changes = {name.replace("__", "."): value for name, value in changes.items()}
    settings_reader.change(Settings, source, changes)
    return source


def test_another_kind_keeps_what_was_set_and_both_have():
    assert change(schedule__kind="constant")["schedule"] == {
        "kind": "constant",
        "peak": 1e-2,
        "warmup": "160 steps",
    }
    # Whatever the order in which they are given; what the kind does not have is left to be refused.
    assert "momentum" in change(optimizer__momentum=0.9, optimizer__kind="adamw")["optimizer"]
    source = change(optimizer__momentum=0.9, optimizer__b2=0.95, optimizer__kind="muon")
    assert source["optimizer"] == {"kind": "muon", "momentum": 0.9, "b2": 0.95}
    optimizer = run_config.build(source, trust=NOBODY).optimizer
    assert (optimizer.momentum, optimizer.b2, optimizer.b1) == (0.9, 0.95, 0.9)
