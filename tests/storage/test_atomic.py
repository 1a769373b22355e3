"""Files and directories written at once: what a kill left is removed, or put back."""

import pathlib

import pytest

from anytime_jax.storage.atomic import atomic_directory, atomic_write, remove_unfinished
from anytime_jax.storage.files import file_sizes, make_writable_directory


def accept():
    pass


def write(target, content):
    with atomic_directory(target, "last", accept) as part:
        (part / "last").write_text(content)
        assert not target.exists() or (target / "last").read_text() != content


def test_directory_is_replaced_as_a_whole(tmp_path):
    target = tmp_path / "deep" / "model"
    for content in ("old", "new"):
        write(target, content)
        assert [x.name for x in target.parent.iterdir()] == ["model"]
        assert (target / "last").read_text() == content


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
@pytest.mark.parametrize("names", [[], ["model"]], ids=["nothing", "earlier"])
def test_failed_block_leaves_what_was_there(names, error, tmp_path):
    for name in names:
        write(tmp_path / name, "old")
    with pytest.raises(error), atomic_directory(tmp_path / "model", "last", accept):
        raise error
    assert [x.name for x in tmp_path.iterdir()] == names
    assert all((tmp_path / name / "last").read_text() == "old" for name in names)


def test_failed_rename_leaves_the_earlier_directory(tmp_path, monkeypatch):
    write(tmp_path / "model", "old")
    rename = pathlib.Path.rename

    def fails(self, to):
        if self.name.endswith(".part"):
            raise OSError("no")
        return rename(self, to)

    monkeypatch.setattr(pathlib.Path, "rename", fails)
    with pytest.raises(OSError, match="no"):
        write(tmp_path / "model", "new")
    assert [x.name for x in tmp_path.iterdir()] == ["model"]
    assert (tmp_path / "model" / "last").read_text() == "old"


def test_leftovers_of_kills_are_removed(tmp_path):
    target = tmp_path / "model"
    names = ("model.1.part", "model.2.old", "model.x.part", "models.1.part", "other.1.part")
    for name in ("model", *names):
        (tmp_path / name).mkdir()
    assert remove_unfinished(target) == [tmp_path / x for x in names[:2]]
    assert {x.name for x in tmp_path.iterdir()} == {"model", *names[2:]}
    assert remove_unfinished(tmp_path / "nowhere" / "model") == []


def test_directory_that_is_being_written_is_not_touched(tmp_path):
    target = tmp_path / "model"
    with atomic_directory(target, "last", accept) as part:
        (part / "last").write_text("new")
        assert remove_unfinished(target) == []
        assert part.is_dir()
    assert (target / "last").read_text() == "new"


def test_replaced_directory_is_put_back_after_a_kill(tmp_path):
    (tmp_path / "model.7.old").mkdir()
    (tmp_path / "model.7.old" / "last").write_text("old")
    (tmp_path / "model.7.part").mkdir()
    remove_unfinished(tmp_path / "model")
    assert [x.name for x in tmp_path.iterdir()] == ["model"]
    assert (tmp_path / "model" / "last").read_text() == "old"


def test_directory_in_a_bucket_has_the_new_files_alone(bucket):
    for names in (("a", "last"), ("b", "last")):
        with atomic_directory(bucket / "model", "last", accept) as part:
            for name in names:
                (part / name).write_text(name)
    assert {x.name for x in (bucket / "model").iterdir()} == {"b", "last"}


def test_atomic_write_to_a_bucket_is_whole_or_nothing(bucket):
    def fail():
        with atomic_write(bucket / "x.json") as part:
            part.write_text("half")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert not bucket.exists()
    with atomic_write(bucket / "x.json") as part:
        part.write_text("whole")
    assert file_sizes(bucket) == {"x.json": 5}
    make_writable_directory(bucket, "--output")
    assert file_sizes(bucket) == {"x.json": 5}
