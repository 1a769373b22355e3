"""Memory of reading a model of one gigabyte, sharded over eight devices of a process."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy
from paths import REPOSITORY

from anytime_jax.config.model import Llama
from anytime_jax.formats import model_reader, transformers_models
from anytime_jax.formats.model_format import expected_shapes
from anytime_jax.models import decoder

CONFIG = Llama(
    layers=7, heads=12, kv_heads=4, width=1536, mlp_width=4096, length=128,
    vocab_size=24_576, embedding_rows=24_576, dtype="float32",
)  # fmt: skip
CHILD = """
import pathlib, sys, threading, time
import jax
from anytime_jax.config.model import Llama
from anytime_jax.config.schema import MeshConfig
from anytime_jax.distributed.sharding import make_mesh, parameter_shardings
from anytime_jax.formats import model_reader
from anytime_jax.models import decoder

folder = pathlib.Path(sys.argv[1])
model = model_reader.describe(folder)
shape = dict(model.shape)
config = Llama(**{name: x for name, x in shape.items() if name != "kind"})
mesh = make_mesh(MeshConfig(1, 4, 2))
shapes = decoder.param_shapes(config)
shardings = parameter_shardings(shapes, decoder.PARAMETER_AXES, mesh)
abstract = jax.tree.map(
    lambda x, y: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=y), shapes, shardings
)


def own_memory():  # without pages of mapped files, which the system takes back at will
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(x.split()[1]) for x in lines if x.startswith("RssAnon"))


def watch():
    global most
    while True:
        most = max(most, own_memory())
        time.sleep(0.002)


before = most = own_memory()
threading.Thread(target=watch, daemon=True).start()
params = model_reader.read_params(model, config, abstract)
jax.block_until_ready(params)
print(most - before)
"""


@pytest.mark.slow
def test_reading_takes_the_shards_and_one_tensor(tmp_path):
    table = transformers_models.LLAMA.tensors(CONFIG)
    shapes = expected_shapes(table, decoder.param_shapes(CONFIG))
    settings = transformers_models.LLAMA.write(CONFIG)
    (tmp_path / "config.json").write_text(json.dumps(settings))
    weight_map = {}
    for i, (name, tensor) in enumerate(shapes.items()):
        safetensors.numpy.save_file(
            {name: np.ones(tensor, np.float32)}, tmp_path / f"{i}.safetensors"
        )
        weight_map[name] = f"{i}.safetensors"
    (tmp_path / model_reader.INDEX).write_text(json.dumps({"weight_map": weight_map}))
    size = sum(4 * np.prod(x) for x in shapes.values())
    assert size > 1e9
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(REPOSITORY),
    }
    command = [sys.executable, "-c", CHILD, str(tmp_path)]
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    peak = 1024 * int(output.stdout.split()[-1])
    largest = max(4 * np.prod(x) for x in shapes.values())
    assert size < peak < size + 2 * largest
