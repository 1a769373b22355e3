"""Fixtures of the tests of benchmarks."""

from benchmark_fixtures import model_file, read_record, small_machine  # noqa: F401
