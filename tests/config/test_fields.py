"""Tests of the declaration and the reading of settings."""

import dataclasses
from typing import Literal

import pytest

from anytime_jax.config.fields import Group, count, declarations, flatten, nearest, read, setting
from anytime_jax.errors import InputError


@dataclasses.dataclass(frozen=True)
class Inner(Group):
    kind: Literal["a", "b"] = setting("kind", identity=True)
    size: int = setting("size", count(1))
    rate: float | None = setting("rate", kinds=("b",))


@dataclasses.dataclass(frozen=True)
class Outer(Group):
    path: str = setting("path", per_run=True)
    pairs: tuple = setting("pairs")
    inner: Inner = setting("group", identity=False)

    def _check(self):
        if self.path == self.inner.kind:
            raise ValueError(f"path = {self.path!r} and inner.kind are the same")


GOOD = {"path": "x", "pairs": [["1x", 2]], "inner": {"kind": "b", "size": 1, "rate": 1}}


def test_read_converts_lists_and_integers():
    group = read(Outer, GOOD)
    assert group == Outer("x", (("1x", 2),), Inner("b", 1, 1.0))
    assert read(Outer, group.to_dict()) == group


def test_setting_of_another_kind_is_left_out():
    group = read(Inner, {"kind": "a", "size": 1})
    assert group.rate is None
    assert group.to_dict() == {"kind": "a", "size": 1}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("config.path", {"path": 1}),
        ("config.path", {"path": "b"}),  # equals inner.kind
        ("config.inner", {"inner": 3}),
        ("config.inner.size", {"inner": {**GOOD["inner"], "size": 0}}),
        ("config.inner.size", {"inner": {**GOOD["inner"], "size": True}}),
        ("config.inner.kind", {"inner": {"size": 1}}),
        ("config.inner.kind", {"inner": {"kind": "c", "size": 1}}),
        ("config.inner.rate", {"inner": {"kind": "a", "size": 1, "rate": 1.0}}),
        ("config.inner.sise", {"inner": {**GOOD["inner"], "sise": 1}}),
    ],
)
def test_bad_values_are_named(name, changes):
    with pytest.raises(InputError, match=rf"^{name} "):
        read(Outer, {**GOOD, **changes})


def test_group_is_checked_when_constructed():
    with pytest.raises(ValueError, match="size"):
        Inner("a", 0, None)


def test_facts_of_a_group_hold_for_its_settings():
    found = declarations(Outer)
    assert list(found) == ["path", "pairs", "inner.kind", "inner.size", "inner.rate"]
    assert [x.identity for x in found.values()] == [True, True, True, False, False]
    assert [x.per_run for x in found.values()] == [True, False, False, False, False]


def test_read_takes_any_dataclass():
    @dataclasses.dataclass(frozen=True)
    class Plain:
        steps: int

    assert read(Plain, {"steps": 3}) == Plain(3)
    with pytest.raises(InputError, match=r"config\.steps = 'x'"):
        read(Plain, {"steps": "x"})


def test_flatten_writes_tuples_as_json_does():
    assert flatten({"a": {"b": ((1, 2),)}, "c": "x"}) == {"a.b": [[1, 2]], "c": "x"}


@pytest.mark.parametrize(
    ("name", "allowed", "hint"),
    [
        ("model.widht", ["name", "model.width"], "did you mean model.width?"),
        ("widht", ["name", "model.width"], "did you mean model.width?"),
        ("lenght", ["layers", "length"], "did you mean length?"),
        ("zzz", ["layers", "length"], "allowed: layers, length"),
    ],
)
def test_nearest_name(name, allowed, hint):
    assert nearest(name, allowed) == hint
