"""A lease has one holder; another takes it when it is released or has expired."""

import threading
import time
from unittest import mock

import pytest

from anytime_jax.checkpoints import run_directory
from anytime_jax.errors import BucketError, InputError, RunError
from anytime_jax.storage import conditional_writes, lease
from anytime_jax.storage.files import file_sizes
from anytime_jax.storage.json_files import read_json


def unrenewed(monkeypatch):
    """Makes a lease that nobody renews, and that is free after a moment."""
    monkeypatch.setattr(lease, "RENEWAL_SECONDS", 3600.0)
    monkeypatch.setattr(lease, "EXPIRY_SECONDS", 0.3)


def ignore(text):
    del text


def test_lease_that_is_renewed_is_not_taken(bucket):
    with (
        lease.hold(bucket / "lock", "the run", ignore) as held,
        pytest.raises(InputError, match="the run"),
        lease.hold(bucket / "lock", "the run", ignore),
    ):
        pass
    del held
    assert not bucket.exists()


class Clock:
    """Time that passes only while a process waits, or while the server does not answer."""

    time = staticmethod(time.time)

    def __init__(self, meanwhile=lambda waits: 0.0):
        self.now, self.waits, self._meanwhile = 0.0, 0, meanwhile

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.waits += 1
        self.now += seconds + self._meanwhile(self.waits)


def test_released_lease_is_free(bucket):
    for _ in range(2):
        with lease.hold(bucket / "lock", "the run", ignore):
            assert lease.is_held(bucket / "lock")
        assert not lease.is_held(bucket / "lock")


@pytest.mark.parametrize(
    ("content", "waits"), [("host 7 1234.5 some-uuid\n", True), ("host 7 1234.5\n", False)]
)
def test_lease_of_a_killed_process_expires(bucket, monkeypatch, content, waits):
    """The lock of a directory that was copied from a disk is no lease."""
    lines, clock = [], Clock()
    monkeypatch.setattr(lease, "_POLL_SECONDS", 5.0)
    (bucket / "lock").write_bytes(content.encode())
    monkeypatch.setattr(lease, "time", clock)
    with lease.hold(bucket / "lock", "the run", lines.append):
        assert (clock.now > lease.EXPIRY_SECONDS) == waits
    assert ["host 7" in line for line in lines] == [True] * waits


def test_silence_of_the_server_does_not_age_a_lease(bucket, monkeypatch):
    """The holder cannot renew it then either: its lease is good when the server answers again."""

    def fall_silent(waits):
        if waits == 20:
            held.confirm()
        return 300.0 if waits == 10 else 0.0

    monkeypatch.setattr(lease, "RENEWAL_SECONDS", 3600.0)
    with lease.hold(bucket / "lock", "the run", ignore) as held:
        monkeypatch.setattr(lease, "time", Clock(fall_silent))
        with pytest.raises(InputError), lease.hold(bucket / "lock", "the run", ignore):
            pass


def test_holder_that_was_suspended_learns_that_it_lost_the_lease(bucket, monkeypatch):
    unrenewed(monkeypatch)
    with lease.hold(bucket / "lock", "the run", ignore) as suspended:
        suspended.confirm()
        with lease.hold(bucket / "lock", "the run", ignore) as other:
            with pytest.raises(RunError, match=str(bucket)):
                suspended.confirm()
            with pytest.raises(RunError, match=str(bucket)):
                suspended.confirm()
            other.confirm()
            suspended.release()
            assert lease.holder(bucket / "lock")  # the other's


def test_lost_lease_explains_what_failed_after_it(bucket, monkeypatch):
    unrenewed(monkeypatch)
    with pytest.raises(RunError, match=str(bucket)) as error:
        suspend_and_fail(bucket / "lock")
    assert isinstance(error.value.__cause__, BucketError)


def suspend_and_fail(path):
    with lease.hold(path, "the run", ignore):
        with lease.hold(path, "the run", ignore):
            pass  # removes what the other writes, which has not renewed since
        raise BucketError("a file of a save is gone")


def test_removed_lease_is_a_removed_run(bucket):
    with lease.hold(bucket / "lock", "the run", ignore) as held:
        (bucket / "lock").unlink()
        with pytest.raises(RunError, match=str(bucket)):
            held.confirm()


def test_release_gives_up_beside_a_silent_server(bucket_server, bucket, monkeypatch):
    unrenewed(monkeypatch)
    monkeypatch.setattr(lease, "_RELEASE_SECONDS", 0.2)
    with lease.hold(bucket / "lock", "the run", ignore):
        bucket_server.be_silent(120)
    assert time.monotonic() < bucket_server.silent_until
    bucket_server.silent_until = 0.0


def test_two_processes_that_start_at_once_are_one_too_many(bucket):
    held, refused, over = [], [], threading.Event()

    def take():
        try:
            with lease.hold(bucket / "lock", "the run", ignore):
                held.append(1)
                assert over.wait(600)
        except InputError as error:
            refused.append(error)
            if len(refused) == 3:
                over.set()

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(180)
    assert (len(held), len(refused)) == (1, 3)


def test_run_directory_in_a_bucket_has_one_owner(bucket):
    identity = {"seed": 1}
    run_directory.initialize(bucket, identity, {"name": "a"})
    run_directory.initialize(bucket, identity, {"name": "b"})  # it belongs to the run
    with pytest.raises(InputError, match="seed was 1"):
        run_directory.initialize(bucket, {"seed": 2}, {"name": "a"})
    with run_directory.lock(bucket) as confirm:
        confirm()
        assert run_directory.is_locked(bucket)
        assert len(run_directory.lock_holder(bucket).split()) == 4
        with pytest.raises(InputError, match=str(bucket)), run_directory.lock(bucket):
            pass
    assert not run_directory.is_locked(bucket)
    assert file_sizes(bucket).keys() == {"run.json"}


def test_processes_that_begin_the_same_run_at_once_agree(bucket, monkeypatch):
    create = conditional_writes.create

    def create_after_another(path, content):
        create(path, b'{"identity": {"seed": 1}, "name": "other"}')
        create(path, content)

    monkeypatch.setattr(conditional_writes, "create", create_after_another)
    run_directory.initialize(bucket, {"seed": 1}, {"name": "a"})
    (bucket / "run.json").unlink()
    with pytest.raises(InputError, match="seed was 1"):
        run_directory.initialize(bucket, {"seed": 2}, {"name": "a"})


def test_run_file_out_of_reach_is_not_damaged(bucket, monkeypatch):
    run_directory.initialize(bucket, {"seed": 1}, {})
    for error, kind in (
        (ConnectionResetError(104, "reset"), BucketError),
        (OSError("Forbidden: b/bucket"), InputError),
    ):
        monkeypatch.setattr(type(bucket), "read_bytes", mock.Mock(side_effect=error))
        for read in (run_directory.read_run_file, lambda path: read_json(path / "run.json")):
            with pytest.raises(kind, match=r"run\.json cannot be"):
                read(bucket)
