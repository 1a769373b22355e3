"""A server of buckets for the tests of a worker."""

import itertools
import os

import pytest
from bucket_server import BucketServer

from anytime_jax.storage.paths import storage_path

_numbers = itertools.count()


@pytest.fixture(scope="session")
def _server():
    # The libraries read the address once, so all tests of a process share a server.
    server = BucketServer()
    os.environ.update(server.environment)
    yield server
    server.close()


@pytest.fixture
def bucket_server(_server):
    """The server, without faults; a test that stops it starts it again."""
    _server.failures.clear()
    _server.silent_until = 0.0
    _server.hook = lambda request: None
    yield _server
    _server.hook = lambda request: None


@pytest.fixture
def bucket(bucket_server):
    """A new folder of a bucket."""
    return storage_path(f"gs://bucket/test-{next(_numbers)}")
