"""Odd calls of the Python API, in the working directory of a sandbox, drawn from a seed."""

import collections
import contextlib
import os
import pathlib
import random
import threading
import warnings

import jax
import jax.numpy as jnp
import numpy as np

from anytime_jax import api, averaging, schedules
from anytime_jax.errors import InputError, RunError

_VALUES = [
    *(None, True, False, 0, 1, -1, 2**31, 10**30, 0.5, float("nan"), float("inf"), 1e-320, "", " "),
    *("f25", "last", "f=35", "zz", "run", "data", "run.py", "a\0b", "x" * 5000, "\ud800", b"run"),
    *((), (1,), ["f25"], {"f25": 1}, {"a": {"b": 1}}, object, len, np.float32(0.003), np.int64(3)),
    *(np.bool_(False), np.zeros(3), pathlib.Path("run"), pathlib.Path("no"), range(3)),
]
_ALLOWED = (InputError, RunError)
_ALLOWED_OF_LIBRARY = (ValueError, TypeError)  # with a message of ours, as in Optax


def make(folder: str, seed: int) -> None:
    """Makes some calls in a folder, one after another or in threads, and prints how many ended how.

    Raises what none of them may raise.
    """
    os.chdir(folder)
    warnings.simplefilter("error")
    draw = random.Random(seed)
    outcomes: collections.Counter[str] = collections.Counter()
    problems: list[BaseException] = []

    def call(number: int) -> None:
        own = random.Random(f"{seed}/{number}")
        kind = own.choice(_CALLS)
        try:
            kind(own)
            outcomes["returned"] += 1
        except _ALLOWED as error:
            if not str(error) or "\n" in str(error):
                problems.append(error)
            outcomes[type(error).__name__] += 1
        except BaseException as error:
            error.add_note(f"call {number} of {seed}: {kind.__name__}")
            problems.append(error)

    numbers = range(draw.choice((1, 4, 8)))
    if draw.random() < 0.5:
        threads = [threading.Thread(target=call, args=(i,)) for i in numbers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    else:
        for i in numbers:
            call(i)
    if problems:
        raise problems[0]
    print(dict(outcomes))


def _odd(draw: random.Random, usual: object) -> object:
    return draw.choice(_VALUES) if draw.random() < 0.4 else usual


def _load_config(draw: random.Random) -> None:
    names = ("schedule.peak", "stop", "batch_size", "data.mixture", "model.length", "no.such", "")
    changes = {draw.choice(names): draw.choice(_VALUES)} if draw.random() < 0.7 else None
    api.load_config(_odd(draw, "run.py"), _odd(draw, changes))


def _train(draw: random.Random) -> None:
    config = api.load_config("run.py", {"stop": draw.choice(("2x", "4x", "13 steps"))})
    api.train(_odd(draw, config), quiet=True)


def _open_run(draw: random.Random) -> None:
    api.open_run(_odd(draw, "run"), _odd(draw, "latest"))


def _load(draw: random.Random) -> None:
    api.load(_odd(draw, "run"), _odd(draw, "f25"), _odd(draw, "latest"))


def _evaluate(draw: random.Random) -> None:
    losses = api.evaluate(
        _odd(draw, "run"),
        _odd(draw, ["f25"]),
        data=_odd(draw, "data"),
        split=_odd(draw, "validation"),
        tokens=_odd(draw, 64),
    )
    if not losses or not all(0 < x < 99 for x in losses.values()):
        raise ArithmeticError(f"losses {losses}")


def _generate(draw: random.Random) -> None:
    api.generate(
        _odd(draw, "run"),
        _odd(draw, "x"),
        _odd(draw, "f25"),
        tokens=_odd(draw, 3),
        temperature=_odd(draw, 0.8),
        top_k=_odd(draw, 0),
        top_p=_odd(draw, 0.9),
        seed=_odd(draw, 0),
    )


def _schedule(draw: random.Random) -> None:
    make_schedule = draw.choice((schedules.inverse_sqrt, schedules.constant, schedules.wsd))
    with contextlib.suppress(*_ALLOWED_OF_LIBRARY):
        alpha = draw.choice((100, 51_200, 2**31 - 1, 3_000_000_000))
        rate = make_schedule(_odd(draw, 1e-3), _odd(draw, alpha), warmup=_odd(draw, 10))
        value = float(rate(draw.choice((0, 1, 100, 2**31 - 1, np.int64(2**40)))))
        if not 0 <= value < float("inf"):
            raise ArithmeticError(f"{make_schedule.__name__}: a rate of {value}")


def _average(draw: random.Random) -> None:
    with contextlib.suppress(*_ALLOWED_OF_LIBRARY):
        transform = averaging.average_params(_odd(draw, [25.0]))
        state = transform.init(jnp.ones(draw.choice((1, 3))))
        _, state = transform.update(jnp.zeros(3), state, jnp.ones(3))
        if jax.tree.map(jnp.shape, averaging.averages(state)) != {"f25": (3,)}:
            raise ArithmeticError("a state of another shape was taken")


def _rule(draw: random.Random) -> None:
    rules = (averaging.GrowingWindow, averaging.FixedDecay, averaging.Uniform)
    with contextlib.suppress(*_ALLOWED_OF_LIBRARY):
        rule = draw.choice(rules)(_odd(draw, draw.choice((0, 0.5, 25.0, 2**24))))
        weight = float(rule.newest_weight(_odd(draw, draw.choice((-1, 1, 2**24 + 3)))))
        kernel = rule.kernel(_odd(draw, draw.choice((-1, 0, 10))))
        if not 0 <= weight <= 1 or not np.all(np.isfinite(kernel)) or len(kernel) < 1:
            raise ArithmeticError(f"{rule}: {weight}, {kernel}")


_CALLS = [_load_config, _train, _open_run, _load, _evaluate, _generate, _schedule, _average]
_CALLS += [_rule]
