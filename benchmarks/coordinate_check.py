"""The coordinate check: how the size of activations and of their changes depends on the width.

    python -m benchmarks.coordinate_check

Models of several widths take ten updates on one batch of random tokens. For every activation, the
slope of log(root mean square) against log(width) is fitted: of the activation before training, and
of its change after each update. With "mup" all slopes are near 0. The head starts at zero, for a
random head makes the first logits fall with the root of the width, as they must, and the first
updates with them. A second table has these logits, and the norm of the gradient, of random heads.

Source: Tensor Programs V (arXiv 2203.03466), Appendix D.1.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax

from anytime_jax import optimizers
from anytime_jax.commands.rich_console import open_console
from anytime_jax.config.model import Llama, ModelConfig, Olmo
from anytime_jax.models import decoder
from anytime_jax.models.loss import token_losses
from anytime_jax.tables import Table

WIDTHS = (64, 128, 256, 512, 1024)
UPDATES = 10

_HEAD_SIZE = 16
_ROUNDING = 1e-5
_GRADIENT = "gradient"
_ROWS, _LENGTH, _VOCABULARY = 4, 32, 256


@dataclasses.dataclass(frozen=True)
class Slopes:
    """Slopes against the width, by activation: "embedding", "block 0", ..., "logits".

    Attributes:
      initial: of activations before training; logits that are 0 have none.
      changes: of their changes, after each update.
      gradient: of the global norm of the first gradient.
    """

    initial: dict[str, float]
    changes: dict[str, list[float]]
    gradient: float

    @property
    def largest(self) -> float:
        """The largest absolute slope of any activation or change."""
        slopes = itertools.chain(self.initial.values(), *self.changes.values())
        return max(abs(x) for x in slopes if np.isfinite(x))


def model_of_width(kind: type[ModelConfig], width: int, parametrization: str) -> ModelConfig:
    """Returns a small model, whose base has the first of the widths."""
    base = WIDTHS[0] if parametrization == "mup" else 0
    return kind(
        layers=2,
        heads=width // _HEAD_SIZE,
        width=width,
        mlp_width=4 * width,
        length=_LENGTH,
        vocab_size=_VOCABULARY,
        embedding_rows=_VOCABULARY,
        parametrization=parametrization,  # pyright: ignore[reportArgumentType]
        base_width=base,
        dtype="float32",
        attention="plain",
    )


def measure(
    kind: type[ModelConfig],
    optimizer: Any,
    parametrization: str,
    rate: float,
    widths: Sequence[int] = WIDTHS,
    seeds: int = 2,
    updates: int = UPDATES,
    random_head: bool = False,
) -> Slopes:
    """Returns the slopes of models of a kind, whose sizes are means over seeds."""
    configs = [model_of_width(kind, width, parametrization) for width in widths]
    mean_by_width = [
        _sizes(config, optimizer, rate, seeds, updates, random_head) for config in configs
    ]
    gradients = [x.pop(_GRADIENT) for x in mean_by_width]

    def slope(values: Sequence[Any]) -> float:
        # An activation that has no gradient yet changes by rounding alone.
        if min(values) < _ROUNDING:
            return float("nan")
        return float(np.polyfit(np.log(widths), np.log(values), 1)[0])

    names = list(mean_by_width[0])
    initial = {name: slope([x[name][0] for x in mean_by_width]) for name in names}
    changes = {
        name: [slope([x[name][t] for x in mean_by_width]) for t in range(1, updates + 1)]
        for name in names
    }
    return Slopes(initial, changes, slope(gradients))


def _sizes(
    config: ModelConfig,
    optimizer: Any,
    rate: float,
    seeds: int,
    updates: int,
    random_head: bool,
) -> dict[str, Any]:
    """Returns the root mean square of activations, then those of their changes, by name.

    And the norm of the first gradient.
    """
    transform = optimizer.transform(
        optimizers.RunInfo(
            optax.constant_schedule(rate),
            matrix_axes=decoder.matrix_axes(config),
            width_growth=config.width_growth,
            growing_matrices=decoder.growing_matrices(config),
        )
    )

    def activations(params: decoder.Params, inputs: jax.Array) -> dict[str, jax.Array]:
        x = params["embedding"][inputs]
        found = {"embedding": x}
        for layer in range(config.layers):
            of_layer = jax.tree.map(lambda leaf, i=layer: leaf[i], params["blocks"])
            x = decoder.apply_block(config, of_layer, x, layer)
            found[f"block {layer}"] = x
        return found | {"logits": decoder.apply_head(config, params, x)}

    @jax.jit
    def sizes(key: jax.Array) -> dict[str, jax.Array]:
        tokens = jax.random.randint(key, (_ROWS, _LENGTH + 1), 0, _VOCABULARY)
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        params = decoder.init_params(config, key)
        if not random_head:
            params["head"] = jnp.zeros_like(params["head"])
        before = activations(params, inputs)

        def loss(params: decoder.Params) -> jax.Array:
            return token_losses(decoder.apply(config, params, inputs), targets).mean()

        def update(carry: Any, _: Any) -> tuple[Any, dict[str, jax.Array]]:
            params, state = carry
            updates, state = transform.update(jax.grad(loss)(params), state, params)
            params = cast(decoder.Params, optax.apply_updates(params, updates))
            changes = jax.tree.map(jnp.subtract, activations(params, inputs), before)
            return (params, state), jax.tree.map(_rms, changes)

        _, changes = jax.lax.scan(update, (params, transform.init(params)), length=updates)
        found = jax.tree.map(lambda x, y: jnp.append(_rms(x), y), before, changes)
        return found | {_GRADIENT: optax.tree.norm(jax.grad(loss)(params))}

    each = [sizes(jax.random.key(seed)) for seed in range(seeds)]
    return jax.tree.map(lambda *x: np.mean(x, axis=0, dtype=np.float64), *each)


def _rms(x: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.mean(jnp.square(x)))


# Rates small enough that ten updates stay near the start, where the theory is, but for one.
CASES: Sequence[tuple[type[ModelConfig], Any, str, float]] = (
    (Olmo, optimizers.AdamW(), "mup", 2e-3),
    (Olmo, optimizers.AdamW(), "mup", 1e-2),
    (Llama, optimizers.AdamW(), "mup", 5e-4),
    (Olmo, optimizers.ScheduleFreeAdamW(), "mup", 2e-3),
    (Olmo, optimizers.Muon(scale="fans"), "mup", 2e-3),
    (Olmo, optimizers.Muon(), "mup", 2e-3),
    (Olmo, optimizers.AdamW(), "standard", 2e-3),
    (Llama, optimizers.AdamW(), "standard", 2e-3),
)
RANDOM_HEADS = ((Olmo, "mup"), (Llama, "mup"), (Olmo, "standard"))


def main() -> None:
    """Prints the largest slopes of all cases, and slopes of models with a random head."""
    names = ["model", "optimizer", "rate", "parametrization", "at the start", "changes", "largest"]
    table = Table(f"absolute slopes over widths {WIDTHS[0]} to {WIDTHS[-1]}", names)
    for kind, optimizer, parametrization, rate in CASES:
        slopes = measure(kind, optimizer, parametrization, rate)
        initial, changes = (
            max(abs(x) for x in values if np.isfinite(x))
            for values in (slopes.initial.values(), itertools.chain(*slopes.changes.values()))
        )
        numbers = (f"{x:.3f}" for x in (initial, changes, slopes.largest))
        name = type(optimizer).__name__
        if isinstance(optimizer, optimizers.Muon):
            name += f", scale {optimizer.scale}"
        table.add_row(kind.__name__, name, f"{rate:g}", parametrization, *numbers)
    open_console().print(table)

    names = ["model", "parametrization", "first logits", "first gradient's norm"]
    table = Table("slopes with a random head", names)
    for kind, parametrization in RANDOM_HEADS:
        slopes = measure(
            kind, optimizers.AdamW(), parametrization, 0.0, updates=0, random_head=True
        )
        of_head = (f"{x:+.2f}" for x in (slopes.initial["logits"], slopes.gradient))
        table.add_row(kind.__name__, parametrization, *of_head)
    open_console().print(table)


if __name__ == "__main__":
    main()
