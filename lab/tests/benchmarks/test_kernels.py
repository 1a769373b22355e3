"""Times of an update's kernels, joined with its program."""

import jax
import numpy as np
import pytest

from anytime_lab.compilation.roofline import Kernel
from lab.benchmarks import kernels


def kernel(name, op_name, kind, calls, seconds):
    return Kernel(name, op_name, kind, calls, flops=2e12, bytes=10**9, seconds=seconds)


def test_kernels_of_an_operation_are_a_row():
    found = [
        kernel(
            "dot.1", "jit(step)/while/body/jvp(loss)/layers_0/mlp/dot_general", "matmul", 8, 0.01
        ),
        kernel(
            "dot.2", "jit(step)/while/body/jvp(loss)/layers_11/mlp/dot_general", "matmul", 8, 0.01
        ),
        kernel("add.1", "jit(step)/transpose(jvp(run_block))/norm/add", "memory", 1, 0.002),
    ]
    times = {"dot.1": 0.1, "dot.2": 0.3, "add.1": 0.004, "memset": 0.05}
    rows = kernels.make_rows(found, times, wall=0.5, least=0.01)
    by_name = {row["kernels"]: row for row in rows}
    dot = by_name["matmul: loss/layers/mlp/dot_general"]
    assert dot["calls"] == 16
    assert dot["ms"] == pytest.approx(400)
    assert dot["share"] == pytest.approx(0.8)
    assert (dot["GB"], dot["TFLOP"]) == pytest.approx((16, 32))
    assert dot["of_limit"] == pytest.approx(0.16 / 0.4)
    assert "memory: backward norm/add" not in by_name
    assert by_name["all memory"]["ms"] == pytest.approx(4)
    assert by_name["not in the program"]["ms"] == pytest.approx(50)
    assert by_name["no kernel"]["ms"] == pytest.approx(500 - 454)


@pytest.mark.slow
def test_products_of_an_update_are_timed(model, read_record, tmp_path):
    def train_step(x):  # a larger program of the same name, in the same trace
        for _ in range(6_000):
            x = x @ x
        return x

    other = jax.jit(train_step).lower(np.eye(4)).compile()
    options = ["--steps=2", "--batch=2", "--microbatches=1", "--least=0"]  # however long the gaps
    assert kernels.main(["--model", model, *options, f"--keep={tmp_path}"]) == 0
    live = read_record()["rows"]
    rows = {row["kernels"]: row for row in live}
    assert rows["all matmul"]["ms"] > 0
    assert any("dot_general" in name for name in rows)
    assert rows["not in the program"]["ms"] == 0
    # The trace alone has all of this.
    assert kernels.main([f"--trace={tmp_path}", "--least=0"]) == 0
    assert read_record()["rows"] == live
    del other
