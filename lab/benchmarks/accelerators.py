"""Updates of this package and of MaxText, compiled for absent TPUs and counted by one roofline.

    python -m lab.benchmarks.accelerators [--cases 150m 7b]

The first run makes `.venv-maxtext`, a Python 3.12 environment with MaxText and its compiler, which
compiles both sides. Programs are written to `.cache/accelerators`, and MaxText's are kept there for
the next run. `anytime_lab.compilation.roofline` counts each from its text alone. MaxText's
settings are searched from those of the case, one setting after another, for the least time of a
program that fits; the table has every program tried.

Both sides have the same shapes, rows in a batch, vocabulary, AdamW, bfloat16 products and clip of
the gradient's norm. What differs:

- MaxText has RMSNorm with scales, ours of 150M a LayerNorm without, but with norms of queries and
  keys, which MaxText has in the last program alone ("qk-norm").
- Its GELU is the approximation by tanh, ours the exact one.
- Its residual stream is bfloat16, ours float32.
- Its batch has targets and segment ids of its own, ours a window with one more token.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from anytime_jax.distributed.device_specs import DEVICE_SPECS, DeviceSpec
from anytime_jax.errors import RunError
from anytime_lab.compilation import hlo
from anytime_lab.compilation.roofline import Roofline, analyze
from benchmarks import harness, record

MAXTEXT = "maxtext[tpu]==0.2.5"
ENVIRONMENT = harness.REPOSITORY / ".venv-maxtext"
PROGRAMS = harness.REPOSITORY / ".cache" / "accelerators"
_WORKER = Path(__file__).with_name("maxtext_program.py")
_VARIABLES = {  # no device, and no questions about one
    "JAX_PLATFORMS": "cpu",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "DECOUPLE_GCLOUD": "TRUE",
    "PYTHONPATH": str(harness.REPOSITORY),
}
_COMMON = {
    "run_name": "race",
    "compile_topology_num_slices": 1,
    "vocab_size": 32_128,
    "max_target_length": 1024,
    "dtype": "bfloat16",
    "weight_dtype": "float32",
    "attention": "flash",
    "dataset_type": "synthetic",
    "enable_checkpointing": False,
    "logits_via_embedding": False,
    "steps": 10,
}
# The default block has no such norms; this one has the same sublayers otherwise.
_QK_NORM = {"decoder_block": "qwen3", "use_qk_norm": True}

Settings = Mapping[str, object]


@dataclasses.dataclass(frozen=True)
class Case:
    """A model and devices.

    Attributes:
      ours: options of `anytime_jax compile` for each of our programs, by label.
      theirs: settings of MaxText, from which its search begins.
      choices: alternatives of the search, one group after another.
    """

    device: DeviceSpec
    devices: int
    ours: Mapping[str, Sequence[str]]
    theirs: Settings
    choices: Sequence[Sequence[Settings]]


def _mesh(data: int, fsdp: int) -> Settings:
    return {"ici_data_parallelism": data, "ici_fsdp_parallelism": fsdp}


def _microbatches(count: int, rows: int) -> Settings:
    """Settings of a number of microbatches, for the rows of a batch on a device."""
    return {"gradient_accumulation_steps": count, "per_device_batch_size": rows // count}


_150M = ("--config=configs/150m_inv_sqrt.py", "--topology=v5e:2x4")
_7B = ("--config=configs/7b_inv_sqrt.py", "--topology=v5p:4x4x4")
_SIXTEEN = ("--config.microbatches=16",)
_WHOLE = ("--config.mesh.fsdp=1", "--config.microbatches=4")  # weights gathered once an update
CASES = {
    "150m": Case(
        device=DEVICE_SPECS["tpu v5e"],
        devices=8,
        ours={
            "five averages": _150M,
            "five averages, 16 microbatches": (*_150M, *_SIXTEEN),
            "no averages, 16 microbatches": (*_150M, *_SIXTEEN, "--config.averages=()"),
        },
        theirs={
            "compile_topology": "v5e-8",
            "base_emb_dim": 1024,
            "base_num_query_heads": 16,
            "base_num_kv_heads": 16,
            "base_mlp_dim": 4096,
            "head_dim": 64,
            "base_num_decoder_layers": 12,
            "mlp_activations": "['gelu']",
            "remat_policy": "minimal_with_context",
            "scan_layers": False,
            **_mesh(8, 1),
            **_microbatches(8, 32),
        },
        choices=(
            [{"shard_optimizer_over_data": True}, _mesh(1, 8)],
            [{"remat_policy": "minimal"}, {"remat_policy": "save_dot_except_mlp"}],
            [{"scan_layers": True}],
            [_microbatches(4, 32), _microbatches(16, 32)],
        ),
    ),
    "7b": Case(
        device=DEVICE_SPECS["tpu v5p"],
        devices=64,
        ours={
            "no averages": (*_7B, "--config.averages=()"),
            "no averages, data 64": (*_7B, "--config.averages=()", *_WHOLE),
        },
        theirs={
            "compile_topology": "v5p-128",
            "base_emb_dim": 4096,
            "base_num_query_heads": 32,
            "base_num_kv_heads": 32,
            "base_mlp_dim": 11_008,
            "head_dim": 128,
            "base_num_decoder_layers": 32,
            "mlp_activations": "['silu','linear']",
            "remat_policy": "minimal_with_context",
            "scan_layers": True,
            **_mesh(1, 64),
            **_microbatches(4, 32),
        },
        choices=(
            [{"remat_policy": "save_qkv_proj"}, {"remat_policy": "minimal"}],
            [_microbatches(2, 32), _microbatches(8, 32)],
        ),
    ),
}


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled program: its roofline, and its bytes on each device."""

    name: str
    roofline: Roofline
    memory: int

    def row(self, device: DeviceSpec) -> dict[str, object]:
        """Returns its row of the table."""
        kernels, products = self.roofline.kernel_seconds, self.roofline.of_kind("matmul")
        attention = self.roofline.of_kind("attention")
        moved = sum(x.calls * x.bytes for x in self.roofline.collectives if x.in_loop)
        return {
            "program": self.name,
            "ms": 1e3 * self.roofline.seconds,
            "kernels_ms": 1e3 * kernels,
            "exposed_ms": 1e3 * self.roofline.exposed_seconds,
            "share": (products.kernel_seconds + attention.kernel_seconds) / kernels,
            "memory_ms": 1e3 * self.roofline.of_kind("memory").kernel_seconds,
            "moved_GB": self.roofline.bytes / 1e9,
            "products_TFLOP": products.flops / 1e12,
            "in_loop_GB": moved / 1e9,
            "memory_GB": self.memory / 1e9,
            "fits": "yes" if self.memory <= device.memory else "no",
        }


def main(argv: Sequence[str]) -> int:
    parser = harness.make_parser("lab.benchmarks.accelerators", __doc__)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--python", default="python3.12", help="to make the environment with")
    return record.run(parser, argv, _measure)


def _measure(options: argparse.Namespace) -> record.Result:
    _make_environment(options.python)
    rows = []
    for name in options.cases:
        case = CASES[name]
        rows += [program.row(case.device) for program in _race(name, case)]
    return record.Result("Updates for absent TPUs, by one roofline", rows, _versions())


def _race(name: str, case: Case) -> Iterator[Program]:
    """Yields our programs, every program of MaxText that was tried, and its best with qk-norm."""
    for label, arguments in case.ours.items():
        yield _compile_ours(f"{name}, {label}", case, arguments)

    def compile_theirs(settings: Settings, more: str = "", /, **added: object) -> Program:
        changed = (f"{x}={value}" for x, value in settings.items() if case.theirs.get(x) != value)
        label = ", ".join(filter(None, (name, "MaxText", *changed, more)))
        return _compile_theirs(label, case, {**settings, **added})

    settings, best = case.theirs, compile_theirs(case.theirs)
    yield best
    for choices in case.choices:
        start = settings
        for choice in choices:
            tried = {**start, **choice}
            program = compile_theirs(tried)
            yield program
            is_faster = program.roofline.seconds < best.roofline.seconds
            if program.memory <= case.device.memory and is_faster:
                settings, best = tried, program
    yield compile_theirs(settings, "qk-norm", **_QK_NORM)


def _make_environment(python: str) -> None:
    """Makes the environment of both sides, unless it is there."""
    done = ENVIRONMENT / "installed"
    if done.exists():
        return
    _run(python, "-m", "venv", str(ENVIRONMENT))
    _run(_python(), "-m", "pip", "install", "--quiet", MAXTEXT)
    done.touch()


def _versions() -> dict[str, str]:
    """Returns the versions of what compiles both sides."""
    names = ("maxtext", "jax", "libtpu")
    code = f"import importlib.metadata as m; print(*map(m.version, {names}))"
    return dict(zip(names, _run(_python(), "-c", code).split(), strict=True))


def _compile_ours(name: str, case: Case, arguments: Sequence[str]) -> Program:
    output = PROGRAMS / _file_name(name)
    command = (_python(), "-m", "anytime_jax", "compile", *arguments)
    report = _run(*command, "--json", f"--hlo={output}.hlo")
    sizes = json.loads(report.splitlines()[-1])["memory"]
    output.with_suffix(".json").write_text(json.dumps(sizes), "utf-8")
    return _count(name, case, output)


def _compile_theirs(name: str, case: Case, settings: Settings) -> Program:
    output = PROGRAMS / _file_name(name)
    if not output.with_suffix(".json").exists():
        pairs = [f"{key}={value}" for key, value in {**_COMMON, **settings}.items()]
        _run(_python(), str(_WORKER), str(output), *pairs)
    return _count(name, case, output)


def _count(name: str, case: Case, output: Path) -> Program:
    sizes = json.loads(output.with_suffix(".json").read_text("utf-8"))
    module = hlo.parse(output.with_suffix(".hlo").read_text("utf-8"))
    roofline = analyze(module, case.device, {"devices": case.devices})
    return Program(name, roofline, sum(sizes.values()))


def _file_name(name: str) -> str:
    return "".join(x if x.isalnum() else "-" for x in name)


def _python() -> str:
    return str(ENVIRONMENT / "bin" / "python")


def _run(*command: str) -> str:
    """Runs a command in the repository and returns its output."""
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **_VARIABLES}
    ended = subprocess.run(
        command, cwd=harness.REPOSITORY, env=environment, capture_output=True, text=True
    )
    if ended.returncode not in (0, 2):  # 2: the program does not fit, which the table says
        raise RunError(
            f"{' '.join(command)[:200]} ended with {ended.returncode}: {ended.stderr[-1000:]}"
        )
    return ended.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
