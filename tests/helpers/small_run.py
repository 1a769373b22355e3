"""Small run: text, dataset, configuration, and programs compiled once."""

import dataclasses
import fcntl
import functools
import operator
import os
import pathlib
import random
import shutil
from collections.abc import Callable, Mapping
from typing import Any

import jax
import pytest
from ml_collections import ConfigDict
from paths import HELPERS

from anytime_jax.config import run_config
from anytime_jax.config.kinds import EVERY_PACKAGE
from anytime_jax.config.mesh import MeshConfig
from anytime_jax.config.model import ModelConfig
from anytime_jax.config.run_config import Config
from anytime_jax.corpus.file_source import FileSource
from anytime_jax.corpus.preparation import prepare
from anytime_jax.data.dataset_info import DatasetInfo
from anytime_jax.distributed import sharding
from anytime_jax.training import step
from anytime_jax.training.objective import JOINED, DocumentRules
from configs import base

LENGTH = 8
BATCH = 8
VOCABULARY = 300
DATA_SEED = 3
CHINCHILLA_STEPS = 10  # so milestones are 9, 10, 18, 20, 36, 40, ...
AVERAGES = ("f6.25", "f25")


def settings(run_dir: str | pathlib.Path, data: str | pathlib.Path, **changes: Any) -> ConfigDict:
    """Returns the settings of a small run; `eval__every="3 steps"` changes a nested one."""
    config = base.get_config()
    config.name = "tiny"
    config.run_dir = str(run_dir)
    config.batch_size = BATCH
    config.microbatches = 1
    config.chinchilla_tokens = CHINCHILLA_STEPS * BATCH * LENGTH
    config.stop = "1x"
    config.averages = AVERAGES
    config.model.update(layers=2, heads=4, width=16, mlp_width=32, length=LENGTH)
    config.model.update(vocab_size=VOCABULARY, embedding_rows=304, dtype="float32")
    config.data.path = str(data)
    config.data.seed = DATA_SEED
    schedule = {"kind": "inverse_sqrt", "peak": 1e-2, "alpha": 7.0}
    config.schedule = ConfigDict({**schedule, "warmup": "3 steps"})
    config.eval.update(every="5 steps", tokens=10 * LENGTH, batch_size=8)
    config.checkpoint.update(every="4 steps", keep=2)
    config.log.update(every="3 steps", trackers=())
    for name, value in changes.items():
        *groups, last = name.split("__")
        group = functools.reduce(operator.getitem, groups, config)
        with group.ignore_type():
            group[last] = value
    return config


def config(
    run_dir: str | pathlib.Path, data: str | pathlib.Path = "data", **changes: Any
) -> Config:
    """Returns the configuration of a small run."""
    return run_config.build(settings(run_dir, data, **changes).to_dict(), trust=EVERY_PACKAGE)


def mesh(devices: int = 1, **axes: int) -> jax.sharding.Mesh:
    """Returns a mesh over the first of the fake devices."""
    sizes = {"data": -1, "fsdp": 1, "tensor": 1, **axes}
    return sharding.make_mesh(MeshConfig(**sizes), jax.devices()[:devices])


_programs: dict[Any, step.Program] = {}


def program(
    config: Config,
    mesh: jax.sharding.Mesh,
    rules: DocumentRules = JOINED,
    *,
    model: ModelConfig | None = None,
    microbatches: int | None = None,
) -> step.Program:
    """Returns the program of a run; equal programs share one set of compiled functions."""
    model = model or config.model
    averages = tuple(config.averaging_rules.items())
    warmup = config.learning_rate.warmup_end  # which some kinds weigh by
    batch = (config.batch_size, microbatches or config.microbatches, config.accumulation)
    method = config.optimizer, config.clip_norm, config.guard, warmup, averages
    rest = config.log.relative_updates, config.clock, config.seed, mesh
    key = model, rules, *method, *batch, *rest
    if key not in _programs:
        _programs[key] = step.make_program(
            config, mesh, rules, model=model, microbatches=microbatches
        )
    return dataclasses.replace(_programs[key], config=config)


def made_once(
    factory: pytest.TempPathFactory, name: str, make: Callable[[pathlib.Path], object]
) -> pathlib.Path:
    """Returns a read-only folder that one test worker creates with `make(path)` and all share."""
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    folder, done = root / name, root / f"{name}.made"
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)  # another worker failed to create the folder
            make(folder)
            done.touch()
    return folder


def prepare_dataset(folder: pathlib.Path) -> DatasetInfo:
    """Prepares a dataset of random words, with enough windows for about 4x."""
    words = random.Random(0)
    pool = ["".join(words.choices("abcdefghij", k=words.randint(1, 6))) for _ in range(300)]
    documents = [" ".join(words.choices(pool, k=12)) for _ in range(150)]
    (folder / "text").mkdir(parents=True)
    for i, document in enumerate(documents):
        (folder / "text" / f"{i:03d}.txt").write_text(document)
    source = FileSource(str(folder / "text"), validation_fraction=0.15)
    return prepare(source, folder / "data", vocabulary=VOCABULARY, workers=1)


def leaves(tree: Any) -> Mapping[str, Any]:
    """Returns the arrays of a tree on the host, by path."""
    flat = jax.tree_util.tree_leaves_with_path(jax.device_get(tree))
    return {jax.tree_util.keystr(path): leaf for path, leaf in flat}


def same_bits(one: Any, other: Any) -> bool:
    """Whether two trees have the same names, types and bits."""
    left, right = (
        {name: (x.dtype, x.tobytes()) for name, x in leaves(tree).items()} for tree in (one, other)
    )
    return left == right


def write_config(path, run, data, **changes):
    """Writes a configuration file of a small run."""
    path.write_text(
        f"import sys\nsys.path.insert(0, {str(HELPERS)!r})\nimport small_run\n\n"
        f"def get_config():\n"
        f"    return small_run.settings({str(run)!r}, {str(data)!r}, **{changes!r})\n"
    )
    return path


# Changes for a run whose first start prepares the built-in corpus.
CHANGES = {
    "data__builtin_megabytes": 0.3,
    "chinchilla_tokens": 10 * 8 * 16,
    "model__length": 16,
    "eval__tokens": 40 * 16,
    "eval__every": "6 steps",
    "checkpoint__every": "4 steps",
    "log__every": "3 steps",
}
