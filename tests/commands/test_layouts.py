"""The table of layouts."""

from types import SimpleNamespace

import small_run

from anytime_jax.commands import layouts


def test_a_table_of_layouts(capsys, monkeypatch):
    source = small_run.settings("run", "data")
    for name, value in (("CONFIG", source), ("DEBUG", False), ("_DEVICES", ["1", "8", "16"])):
        monkeypatch.setattr(layouts, name, SimpleNamespace(value=value))
    monkeypatch.setattr(layouts, "_PLATFORM", SimpleNamespace(value="gpu"))
    assert layouts.main(["layouts"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line[:9].strip()]
    table = [row for row in rows if row[0] in ("1", "8", "16")]
    assert [row[:4] for row in table] == [
        ["1", "data", "1", "8"],
        ["8", "data", "1", "1"],
        ["8", "fsdp", "1", "1"],
        ["16", "data", "-", "-"],
        ["16", "fsdp", "-", "-"],
    ]
    for bad in ("x", "0", "-8", ""):
        monkeypatch.setattr(layouts, "_DEVICES", SimpleNamespace(value=[bad]))
        assert layouts.main(["layouts"]) == 2
        assert f"--devices={bad}: give whole numbers" in capsys.readouterr().err
