"""Refusals of settings: whatever rule a value breaks, the error names its setting.

One table for all settings of a run; the types of values are refused in `test_fields`, points in a
run in `test_clock`, and classes of one's own in `test_kinds`. No other test refuses a setting.
"""

import copy
import functools
import math
import re

import numpy as np
import pytest

from anytime_jax.config import run_config, settings_reader
from anytime_jax.config.kinds import NOBODY
from anytime_jax.errors import InputError
from configs import quickstart

WARMUP = {"peak": 1e-2, "warmup": "40 steps", "warmup_init": 0.2}
BASES = {
    "": {},
    "two microbatches": {"microbatches": 2},
    "501 layers": {"model.layers": 501},
    "decay": {
        "schedule": {"kind": "constant", **WARMUP},
        "decay": {"horizon": "1x", "floor": 0.05},
        "stop": "1x",
    },
    "branch": {"branch.from_run": "trunk"},
    "branch at 1x": {"branch.from_run": "trunk", "branch.at": "1x"},
    "llama": {"model.kind": "llama"},
    "mup": {"model.parametrization": "mup", "model.base_width": 16},
}
# Values by setting; those of each base are one case.
REFUSED = {
    "": {
        **dict.fromkeys(("model.layers", "eval.batch_size"), (0,)),
        "checkpoint.keep": [0],
        "checkpoint.export": ["f33"],  # which the run does not store
        "seed": [-1],
        "name": [" ", "a\nb"],
        "run_dir": ["a\0b", "~/runs"],
        "batch_size": [0, 10**5000],
        "chinchilla_tokens": [0, 2**63],
        "averages": ["f25", ("polyak",), (25.0,), ("f25", "f25.0")],
        "model.kind": ["olmo3"],
        "model.heads": [5, 128],  # does not divide the width; one channel, but rotation takes pairs
        "model.vocab_size": [2**31 - 1],  # more than its rows
        "model.dtype": ["float16"],
        "model.attention": ["flash"],
        "model.embedding_rows": [0],
        "model.rope_theta": [0.0, math.nan],
        "model.norm_epsilon": [-1e-5],
        "model.z_loss": [-1e-4],
        "model.parametrization": ["mup", "wide"],  # the first needs a base width
        "model.base_width": [16],  # which the standard parametrization has not
        "data.path": [""],
        "data.seed": [-1],
        "data.most_documents": [1],
        "data.skip": [(5, 9), ((9, 5),), ((5, 9), (9, 12))],
        "data.builtin_megabytes": [-1, math.nan],
        "optimizer.b2": [1 - 1e-9],  # 1 in float32
        "optimizer.kind": ["adam"],
        "clip_norm": [0.0, math.inf],
        "guard.skip": ["all"],
        "guard.spike": [0.0, math.nan],
        "guard.limit": [0],
        "guard.silence": [-1, math.inf, "never"],
        "mesh.data": [0],
        "mesh.fsdp": [-1],
        "mesh.tensor": [0],
        "log.trackers": ["wandb", ("wandb",)],
        "schedule.kind": ["cubic"],
        "schedule.peak": [1e39],
        # points in a run
        "stop": ["4", "0x", "1e20 steps", "horizon", "never+"],
        "eval.every": ["often", "0 steps"],
        "eval.tasks": [("",), (3,)],
        "eval.tasks_every": ["often", ("often",)],
        "checkpoint.every": [""],
        "checkpoint.keep_every": ["0x"],
        "log.every": ["10"],
        "log.layers": ["10", "0 steps"],
        "schedule.warmup": ["soon", 1.5, -1],
        # rules across settings
        "microbatches": [0, 5],  # of 32
        "model.length": [0],
        "stages": [
            *((("2x", (("length", 96),)),), (("0x", (("length", 64),)),)),
            *(
                (("2x", (("width", 96),)),),
                (("2x", ()),),
                {"2x": {"mixture": {}}},
                (("soon", (("length", 64),)),),
            ),
        ],
        "data.mixture": [
            *({"a": "data"}, {"a": ("data", 0.5)}, {"a": ("data", 2.0)}, {"a": (3, 1.0)}),
            *({"a/b": ("data", 1.0)}, {"a": ("data", 0.5), "b": ("data", 0.5)}),
        ],
        "eval.weights": [{"other": 1.0}, {"a": -1.0}, {"a": 0.0}, ("a", 1.0)],
        "eval.sets": [{"f25": "data"}, {"a/b": "data"}, {"a": 3}],
        "batch_growth": [
            *("sawsee", 2, (("2x", 32),), (("2x", 64), ("1x", 128)), (("2x", 48),)),
            *((("2x", 2**31),), (("0x", 64),), (("2x", 64, 1),), (("2x", "64"),), (("soon", 64),)),
        ],
        "eval.tokens": [0, 127],  # less than one sequence
        "branch.change": [("model.width",)],
        "branch.at": ["2x"],  # without a trunk
        # names that are no settings, or those of another kind
        "batchsize": [32],
        "model.widht": [32],
        "schedule.gamma": [0.5],
        "schedule.horizon": ["1x"],
        "optimizer.momentum": [0.9],
    },
    "two microbatches": {"batch_growth": [(("2x", 48 + 1),)]},
    "501 layers": {"model.layer_loop": ["unroll"]},
    "decay": {
        "decay.horizon": ["soon", "43 steps"],  # whose decay would start in the warmup
        "decay.shape": ["round"],
        "decay.floor": [2.0],
        "stop": ["4x", "never", "1x+"],
        "schedule": [{"kind": "cosine", **WARMUP, "horizon": "10 steps"}],
    },
    "branch": {
        "branch.from_run": ["trunk", "~/trunk"],  # neither a point nor a horizon
        "branch.at": ["soon"],
    },
    "branch at 1x": {
        "branch": [{"from_run": "trunk", "at": "100 steps"}],  # in the warmup
        "stop": ["0.5x"],
        "initial_weights": ["model"],
        "branch.change": [("optimizer.kind",), ("schedule.peek",)],
    },
    "llama": {
        "model.kv_heads": [-1, 3],  # which does not divide the heads
        "model.head_size": [-2, 15],  # rotation takes pairs
        "model.rope_scaling": [(8.0,), (8.0, 4.0, 1.0, 128)],
    },
    "mup": {"initial_weights": ["somewhere"], "model.base_width": [-16]},
}
# Settings that a refusal names in place of the one that was changed.
NAMED = {
    ("", "model.parametrization"): "model",
    ("501 layers", "model.layer_loop"): "model.layers",
}
CASES = [(base, name) for base, values in REFUSED.items() for name in values]


def changed(base, name, value):
    """The quickstart's settings with those of a base, and a value."""
    source = quickstart.get_config().to_dict()
    for setting, new in copy.deepcopy({**BASES[base], name: value}).items():
        *groups, last = setting.split(".")
        functools.reduce(lambda group, key: group.setdefault(key, {}), groups, source)[last] = new
    return source


@pytest.mark.parametrize(("base", "name"), CASES)
def test_refused_value_is_named_in_one_line(base, name):
    for value in REFUSED[base][name]:
        with pytest.raises(InputError) as caught:
            run_config.build(changed(base, name, value), trust=NOBODY)
        named = f"config.{NAMED.get((base, name), name)}"
        assert re.match(rf"{re.escape(named)}\b", caught.value.setting), caught.value
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["schedule.kind", "schedule.alpha"])
def test_missing_setting_is_named(name):
    source = quickstart.get_config().to_dict()
    *groups, last = name.split(".")
    del functools.reduce(dict.__getitem__, groups, source)[last]
    with pytest.raises(InputError, match=rf"^config\.{name}\b"):
        run_config.build(source, trust=NOBODY)


ODD = [
    *(None, "", [], {}, {1}, b"8", object(), 1j, np.array([1, 2]), 0, -1, 2**31, 10**400),
    *(math.nan, math.inf, "a\nb", "\udcff", "x" * 5000, "4x"),
]


@pytest.mark.parametrize("value", ODD, ids=range(len(ODD)))
def test_any_value_of_any_setting_is_taken_or_refused_in_one_line(value):
    for name in [
        *settings_reader.flatten(quickstart.get_config().to_dict()),
        "model",
        "data",
        "averages",
    ]:
        try:
            run_config.build(changed("", name, value), trust=NOBODY)
        except InputError as error:
            message = str(error)
            assert message.startswith("config")
            assert len(message) < 600
            assert message.isprintable()
            assert name.rpartition(".")[2] in message or name.partition(".")[0] in message
