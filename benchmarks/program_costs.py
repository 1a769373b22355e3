"""Costs of small updates on absent devices, held to those recorded: `make test-compilers`.

    python -m benchmarks.program_costs
    python -m benchmarks.program_costs --write  # record what was found

Each program is a model of two layers, compiled in `.venv-tpu` or `.venv-cuda` (`make compilers`).
`benchmarks/program_costs.json` has its FLOPs, bytes, kernels and temporary memory, and the versions
that compiled it: under others it is skipped. The command fails if one of the figures has grown by
more than its tolerance.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from anytime_jax.errors import RunError
from anytime_jax.tables import Table, numbers
from benchmarks import harness

RECORDED = Path(__file__).with_name("program_costs.json")
TOLERANCES = {"flops": 0.001, "bytes": 0.02, "kernels": 0.02, "temporaries": 0.02}

_150M = ("--config=configs/150m_inv_sqrt.py", "--config.model.layers=2")
_7B = (
    "--config=configs/7b_inv_sqrt.py",
    "--config.model.layers=2",
    "--config.batch_size=64",
    "--config.eval.batch_size=64",
    "--config.microbatches=2",
)
PROGRAMS: Mapping[str, Sequence[str]] = {
    "150M, v5e:2x4": (*_150M, "--topology=v5e:2x4"),
    "150M, v5e:1x1": (*_150M, "--topology=v5e:1x1"),
    "7B, v5p:2x2x2, data 8": (*_7B, "--topology=v5p:2x2x2", "--config.mesh.fsdp=1"),
    "7B, v5p:2x2x2, fsdp 8": (*_7B, "--topology=v5p:2x2x2", "--config.mesh.fsdp=8"),
    "150M, h200:1": (*_150M, "--topology=h200:1"),
    "150M, h100:8": (*_150M, "--topology=h100:8"),
}


def main(argv: Sequence[str]) -> int:
    """Compiles every program and prints its figures; returns 1 if one exceeds the recorded one."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.program_costs", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--write", action="store_true", help="record the figures")
    options = parser.parse_args(argv)
    try:
        return _check(options.write)
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _check(writes: bool) -> int:
    recorded = json.loads(RECORDED.read_text("utf-8")) if RECORDED.exists() else {}
    found, console, problems = {}, Console(width=140), []
    for name, arguments in PROGRAMS.items():
        python = _python(arguments)
        versions = _versions(python)
        costs = recorded.get(name, {})
        if not writes and costs.get("versions") != versions:
            theirs = costs.get("versions", "nothing")
            console.print(f"{name}: skipped, recorded with {theirs}, and here is {versions}")
            continue
        figures = _measure(python, arguments)
        found[name] = {"versions": versions, **figures}
        if not writes:
            problems += _compare(name, figures, costs)
    _print(console, found, recorded)
    if writes:
        RECORDED.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
        console.print(f"wrote {RECORDED}")
    for problem in problems:
        console.print(problem)
    return 1 if problems else 0


def _python(arguments: Sequence[str]) -> str:
    """Returns the Python of the environment with the compiler of a topology."""
    is_gpu = any(x.startswith("--topology=h") for x in arguments)
    environment = harness.REPOSITORY / (".venv-cuda" if is_gpu else ".venv-tpu")
    if not environment.exists():
        raise RunError(f"there is no {environment}: run `make compilers`")
    return str(environment / "bin" / "python")


def _versions(python: str) -> dict[str, str]:
    """Returns the versions of what compiles a program, by package."""
    code = (
        "import importlib.metadata as m, json; names = {'jax', 'jaxlib', 'libtpu',"
        " 'jax-cuda12-plugin'}; print(json.dumps({x.name: x.version for x in m.distributions()"
        " if x.name in names}, sort_keys=True))"
    )
    return dict(json.loads(_run(python, "-c", code)))


def _measure(python: str, arguments: Sequence[str]) -> dict[str, float]:
    report = json.loads(_run(python, "-m", "anytime_jax", "compile", *arguments, "--json"))
    return {
        "flops": report["program_flops"],
        "bytes": report["bytes"],
        "kernels": report["kernel_calls"],
        "temporaries": report["memory"]["temporaries"],
    }


def _compare(name: str, figures: Mapping[str, float], costs: Mapping[str, Any]) -> list[str]:
    """Returns a line for each figure that exceeds the recorded one."""
    return [
        f"{name}: {figure} grew by {value / costs[figure] - 1:.2%}, and {TOLERANCES[figure]:.1%} "
        "is allowed: make the program as good again, or record it by "
        "`python -m benchmarks.program_costs --write` and say why"
        for figure, value in figures.items()
        if value > costs[figure] * (1 + TOLERANCES[figure])
    ]


def _print(
    console: Console, found: Mapping[str, Mapping[str, Any]], recorded: Mapping[str, Any]
) -> None:
    table = Table("", ["program", *numbers(*TOLERANCES)])
    for name, figures in found.items():
        costs = recorded.get(name, {})
        cells = (
            f"{figures[x]:.4g}" + (f" ({figures[x] / costs[x] - 1:+.2%})" if x in costs else "")
            for x in TOLERANCES
        )
        table.add_row(name, *cells)
    console.print(table)


def _run(*command: str) -> str:
    ended = subprocess.run(command, cwd=harness.REPOSITORY, capture_output=True, text=True)
    if ended.returncode not in (0, 2):  # 2: the program does not fit, which does not matter here
        raise RunError(f"{' '.join(command)[:200]}: {ended.stderr[-1000:]}")
    return ended.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
