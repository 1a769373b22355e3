"""A study of two small runs with branches, written to a file."""

import pathlib

import pytest

HELPERS = pathlib.Path(__file__).resolve().parent
REPOSITORY = HELPERS.parents[1]

STUDY = """
import sys
sys.path[:0] = [{here!r}, {repository!r}]
import small_run
from anytime_jax.study import plan

def get_study():
    given = small_run.settings("unused", {data!r}, stop="2x")
    given.schedule = {{"kind": "constant", "peak": 1e-2, "warmup": "3 steps", "warmup_init": 0.1}}
    trunks = plan.runs("constant", given, plan.values("seed", 0, 1), {root!r})
    return plan.Study("tiny", {root!r}, plan.chain(trunks, {more}), "two seeds.")

def get_config(name=""):
    return get_study().run(name).config
"""
BRANCHES = "plan.branches('wsd', trunks, [1, 2])"


@pytest.fixture(name="study")
def study_fixture(tmp_path):
    """Writes the study's file; returns it and the directory of its runs."""

    def write(more=BRANCHES, data="data"):
        file, root = tmp_path / "study.py", tmp_path / "runs"
        places = {"here": str(HELPERS), "repository": str(REPOSITORY)}
        file.write_text(STUDY.format(data=str(data), root=str(root), more=more, **places))
        return file, root

    return write
