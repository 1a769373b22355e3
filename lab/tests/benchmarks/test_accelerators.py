"""The race with MaxText: which settings its search takes, and how a program is counted."""

import dataclasses
import json
import lzma
import pathlib

import pytest

from anytime_jax.distributed.device_specs import DEVICE_SPECS, DeviceSpec
from anytime_lab.compilation.roofline import Kernel, Roofline
from lab.benchmarks import accelerators

FIXTURES = pathlib.Path(__file__).parents[1] / "compilation" / "programs"
CASE = accelerators.Case(
    device=DeviceSpec(1.0, 1.0, memory=10),
    devices=8,
    ours={"ours": ()},
    theirs={"scan": True, "rows": 4},
    choices=([{"scan": False}], [{"rows": 2}, {"rows": 8}, {"rows": 16}]),
)
SECONDS = {  # by whether layers are scanned, the rows, and whether it has qk-norm
    (True, 4, False): 10.0,
    (False, 4, False): 9.0,
    (False, 2, False): 9.5,
    (False, 8, False): 8.0,
    (False, 16, False): 7.0,  # which does not fit
    (False, 8, True): 8.5,
}


def test_search_takes_the_fastest_program_that_fits_and_shows_all(monkeypatch):
    tried = []

    def compile_theirs(name, case, settings):
        key = (settings["scan"], settings["rows"], "use_qk_norm" in settings)
        tried.append(key)
        kernel = Kernel("a", "a", "memory", 1, 0.0, 0, SECONDS[key])
        memory = 20 if settings["rows"] == 16 else 5
        return accelerators.Program(name, Roofline([kernel], [], 1.0), memory)

    kernel = Kernel("a", "a", "memory", 1, 0.0, 0, 1.0)
    ours = accelerators.Program("ours", Roofline([kernel], [], 1.0), 0)
    monkeypatch.setattr(accelerators, "_compile_theirs", compile_theirs)
    monkeypatch.setattr(accelerators, "_compile_ours", lambda *arguments: ours)
    programs = [*accelerators._race("case", CASE)]
    assert tried == [*SECONDS]
    assert [p.roofline.seconds for p in programs[1:]] == [*SECONDS.values()]
    assert programs[-1].name == "case, MaxText, scan=False, rows=8, qk-norm"
    assert [p.row(CASE.device)["fits"] for p in programs].count("no") == 1


def test_program_is_counted_from_its_text(tmp_path):
    program = lzma.decompress((FIXTURES / "v5e_2x2.hlo.xz").read_bytes())
    (tmp_path / "a.hlo").write_bytes(program)
    (tmp_path / "a.json").write_text(json.dumps({"state": 3, "temporaries": 4}))
    case = dataclasses.replace(CASE, device=DEVICE_SPECS["tpu v5e"], devices=4)
    program = accelerators._count("a", case, tmp_path / "a")
    row = program.row(case.device)
    assert program.memory == 7
    assert row["ms"] == pytest.approx(row["kernels_ms"] + row["exposed_ms"])
    assert 0 < row["share"] < 1
