"""Training step, and the program of a run: its jitted functions and its initial state.

An update of the quickstart's model, in bfloat16, with four microbatches, on four devices. The mesh
has 2 parts along `data`, of 2 devices each along `fsdp`. Each part computes with all parameters,
which its 2 devices split.

    >>> from anytime_jax import api
    >>> changes = {"microbatches": 4, "mesh.data": 2, "mesh.fsdp": 2, "model.dtype": "bfloat16"}
    >>> config = api.load_config("quickstart", changes)
    >>> mesh = sharding.make_mesh(config.mesh, jax.devices()[:4])
    >>> program = make_program(config, mesh)
    >>> state = program.abstract_state

The stages, with the shape of an array over all devices, and its shape on each device. The matrices
are those of the MLP's output, of two layers:

    1. tokens of the batch                        int32[32, 129]              [8, 129]
    2. matrices, as the state has them            float32[2, 128, 64]         [1, 128, 32]
       gathered over `data`                       bfloat16[2, 128, 64]        [2, 128, 32]
    3. tokens of a microbatch                     int32[8, 129]               [2, 129]
       hidden states after the last layer         float32[8, 128, 64]         [2, 128, 64]
       logits (at most one block of rows)         bfloat16[8, 128, 1024]      [2, 128, 1024]
       sum of the gradients of microbatches,
       each part of `data` by itself              float32[2, 128, 64]         [2, 128, 32]
    4. mean gradient, from both parts             float32[2, 128, 64]         [1, 128, 32]
       mean loss                                  float32[]                   []
    5. gradient, clipped; moments; update         float32[2, 128, 64]         [1, 128, 32]
    6. new matrices; each average                 float32[2, 128, 64]         [1, 128, 32]

On a CPU, float32 arrays hold the values that are rounded to bfloat16. A bad update is zero. Stages
1 to 4 are `Objective.loss_and_gradient`:

    >>> tokens = jax.ShapeDtypeStruct((32, 129), jnp.int32)
    >>> sharding.batch_sharding(mesh).shard_shape(tokens.shape)
    (8, 129)
    >>> matrix = state.params["blocks"]["mlp_out"]
    >>> matrix.shape, matrix.sharding.shard_shape(matrix.shape)
    ((2, 128, 64), (1, 128, 32))
    >>> of_batch = functools.partial(program.objective.loss_and_gradient, microbatches=4)
    >>> loss, gradient = jax.eval_shape(of_batch, state.params, tokens)
    >>> loss.shape, gradient["blocks"]["mlp_out"]
    ((), ShapeDtypeStruct(shape=(2, 128, 64), dtype=float32))

Stages 5 and 6 are the rest of `train_step`:

    >>> rate = jax.ShapeDtypeStruct((), jnp.float32)
    >>> new, metrics = jax.eval_shape(program.train_step, state, tokens, Rates(rate, rate))
    >>> new.step.dtype, sorted(metrics)[:4]
    (dtype('int32'), ['clipped', 'consecutive_skips', 'grad_norm', 'loss'])

Shape suffixes: B batch, L length, T = L + 1 tokens of a window.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from anytime_jax.config.clock import Clock
from anytime_jax.config.model import ModelConfig
from anytime_jax.config.run_config import Config
from anytime_jax.distributed import sharding
from anytime_jax.distributed.xla_settings import compiler_options, fast_compiler_options
from anytime_jax.models import decoder
from anytime_jax.models.decoder import Params
from anytime_jax.models.loss import token_losses_and_hits
from anytime_jax.train_state import TrainState
from anytime_jax.training.bad_updates import get_guard_state
from anytime_jax.training.objective import JOINED, DocumentRules, Objective
from anytime_jax.training.optimizer import make_optimizer

Metrics = dict[str, jax.Array]
RELATIVE_UPDATES = "relative_updates"  # the metric that has a number for every parameter


class Rates(NamedTuple):
    """Float32 scalars that the host computes for each update and passes to the compiled update.

    They are arguments, so that one program serves every schedule, peak and branch.

    Attributes:
      learning_rate: the learning rate.
      relative_time: as in `optimizers.RunInfo`.
    """

    learning_rate: Any
    relative_time: Any


def rates_at(config: Config, step: int) -> Rates:
    """Returns the rates of the update after `step` updates."""
    schedule, clock = config.learning_rate, config.clock
    before, after = clock.time(step), clock.time(step + 1)
    relative = 0.0
    if before >= schedule.warmup_end:
        relative = (after - before) / after * float(schedule.remaining_fraction(before))
    return Rates(np.float32(config.rate_at(step)), np.float32(relative))


@dataclasses.dataclass(frozen=True)
class Program:
    """The jitted functions of a run on a mesh; each compiles when first called.

    Attributes:
      objective: the losses of the decoder, with the length and the rotation of a stage.
      microbatches: number of microbatches of a batch of the first size.
      init: `(seed=config.seed) -> state` before the first update, with random weights.
      init_from_params: `(params) -> state` before the first update, with `params` donated.
      abstract_state: shapes, types and shardings of the state, without any array.
      train_step: `(state, tokens_BxT, rates) -> (state, metrics)`, with `state` donated; `rates`
        are `Rates`.
      measure_layers: `(params, tokens_BxT) -> metrics` of every layer, as `measure_layers`.
      eval_step: `(params, tokens_BxT, weights_B) -> sums_L`, for any weight tree: the sum of token
        losses at each position in a window.
      window_losses: `(params, tokens_BxT) -> sum of the token losses of each window`.
      token_losses: `(params, tokens_BxT) -> (losses_BxL, is_hit_BxL)`: the loss of each token, and
        whether it is the most likely one.
    """

    config: Config
    mesh: Mesh
    objective: Objective
    microbatches: int
    init: Callable[..., TrainState]
    init_from_params: Callable[[Params], TrainState]
    abstract_state: TrainState
    train_step: Any
    measure_layers: Any
    eval_step: Any
    window_losses: Callable[[Params, jax.Array], jax.Array]
    token_losses: Callable[[Params, jax.Array], tuple[jax.Array, jax.Array]]

    @property
    def model(self) -> ModelConfig:
        """The decoder."""
        return self.objective.model

    @property
    def rules(self) -> DocumentRules:
        """How the documents in a window are treated."""
        return self.objective.rules

    def trace_update(self) -> jax.stages.Traced:
        """Returns the train step traced for a batch of the first size."""
        batch = self._abstract_batch(self.config.clock.tokens_per_step // self.model.length)
        rate = jax.ShapeDtypeStruct((), jnp.float32, sharding=sharding.replicated(self.mesh))
        return self.train_step.trace(self.abstract_state, batch, Rates(rate, rate))

    def lower_update(self) -> jax.stages.Lowered:
        """Returns the train step lowered for the mesh, whose devices need not exist."""
        return self._lower(self.trace_update())

    def lower_evaluation(self) -> jax.stages.Lowered:
        """Returns the evaluation step lowered for the mesh, whose devices need not exist."""
        size = sharding.round_up_rows(self.mesh, self.config.eval_rows(self.model.length))
        rows = sharding.batch_sharding(self.mesh)
        weights_B = jax.ShapeDtypeStruct((size,), jnp.float32, sharding=rows)
        params, batch = self.abstract_state.params, self._abstract_batch(size)
        return self._lower(self.eval_step.trace(params, batch, weights_B))

    def _abstract_batch(self, size: int) -> jax.ShapeDtypeStruct:
        rows = sharding.batch_sharding(self.mesh)
        return jax.ShapeDtypeStruct((size, self.model.length + 1), jnp.int32, sharding=rows)

    def _lower(self, traced: jax.stages.Traced) -> jax.stages.Lowered:
        platform = self.mesh.devices.flat[0].platform
        return traced.lower(lowering_platforms=("cuda" if platform == "gpu" else platform,))


def make_program(
    config: Config,
    mesh: Mesh,
    rules: DocumentRules = JOINED,
    *,
    model: ModelConfig | None = None,
    microbatches: int | None = None,
) -> Program:
    """Returns the functions of a run; raises InputError if the mesh does not divide a parameter.

    `rules` say how documents are treated (`document_rules`). `model` is the decoder of a stage, by
    default of the first stage. `microbatches` is the number of microbatches of a batch of the first
    size; by default that of `config`, or 1 where `config` says "auto" or "again".
    """
    model = config.model if model is None else model
    if microbatches is None:
        microbatches = 1 if isinstance(config.microbatches, str) else config.microbatches
    objective = Objective(model, sharding.ShardingConstraint(mesh), rules)

    def init_from_params(params: Params) -> TrainState:
        # No state depends on the rates.
        optimizer = make_optimizer(config, lambda count: 0.0, relative_time=lambda: 0.0)
        return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))

    def init(seed: int = config.seed) -> TrainState:
        return init_from_params(decoder.init_params(model, jax.random.key(seed)))

    shapes = jax.eval_shape(init)
    shardings = sharding.state_shardings(shapes, shapes.params, decoder.parameter_axes(model), mesh)
    abstract_state = jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
        shapes,
        shardings,
    )
    microbatch_rows = config.batch_size // microbatches
    rows, replicated = sharding.batch_sharding(mesh), sharding.replicated(mesh)
    options, fast_options = compiler_options(mesh), fast_compiler_options(mesh)
    return Program(
        config=config,
        mesh=mesh,
        objective=objective,
        microbatches=microbatches,
        init=jax.jit(init, out_shardings=shardings, compiler_options=fast_options),
        init_from_params=jax.jit(
            init_from_params,
            out_shardings=shardings,
            donate_argnums=0,
            compiler_options=fast_options,
        ),
        abstract_state=abstract_state,
        train_step=jax.jit(
            functools.partial(train_step, config, objective, rows=microbatch_rows),
            in_shardings=(shardings, rows, replicated),
            out_shardings=(shardings, replicated),
            donate_argnums=0,
            compiler_options=options,
        ),
        measure_layers=jax.jit(
            functools.partial(measure_layers, config, objective, rows=microbatch_rows),
            in_shardings=(shardings.params, rows),
            out_shardings=replicated,
            compiler_options=options,
        ),
        eval_step=jax.jit(
            objective.position_losses,
            in_shardings=(shardings.params, rows, rows),
            out_shardings=replicated,
            compiler_options=options,
        ),
        window_losses=jax.jit(
            objective.window_losses,
            in_shardings=(shardings.params, rows),
            out_shardings=rows,
            compiler_options=options,
        ),
        token_losses=jax.jit(
            functools.partial(objective.token_losses, of_logits=token_losses_and_hits),
            in_shardings=(shardings.params, rows),
            out_shardings=rows,
            compiler_options=options,
        ),
    )


def train_step(
    config: Config,
    objective: Objective,
    state: TrainState,
    tokens_BxT: jax.Array,
    rates: Rates,
    *,
    rows: int,
) -> tuple[TrainState, Metrics]:
    """Returns the state after one update on a batch of windows, and its metrics.

    `rows` is the number of windows in a microbatch, counted as windows of the first length. A batch
    that has grown is computed in more microbatches of the same size.
    """
    windows = _count_windows(config, tokens_BxT)
    microbatches = windows // rows
    loss, grads = objective.loss_and_gradient(
        state.params, tokens_BxT, microbatches, config.accumulation
    )
    grad_norm = optax.tree.norm(grads)
    optimizer = make_optimizer(
        config,
        learning_rate=lambda count: rates.learning_rate,
        relative_time=lambda: rates.relative_time,
        constrain_stack=objective.constrain.split_stack,
    )
    with jax.named_scope("optimizer"):
        updates, opt_state = optimizer.update(
            grads,
            state.opt_state,
            state.params,
            value=loss,
            grad_norm=grad_norm,
            **_average_time(config.clock, state.step, windows),
        )
    before, after = get_guard_state(state.opt_state), get_guard_state(opt_state)
    metrics = {
        "loss": loss,
        "lr": rates.learning_rate,
        "grad_norm": grad_norm,
        "clipped": (grad_norm > config.clip_norm).astype(jnp.float32),
        "update_norm": optax.tree.norm(updates),
        "recent_loss": before.loss_mean,
        "spiked": after.spikes - before.spikes,
        "spikes": after.spikes,
        "skipped": after.skipped,
        "consecutive_skips": after.consecutive_skips,
    }
    if config.log.relative_updates:
        metrics[RELATIVE_UPDATES] = _relative_updates(updates, state.params)
    params = cast(Params, optax.apply_updates(state.params, updates))
    return TrainState(state.step + 1, params, opt_state), metrics


def measure_layers(
    config: Config, objective: Objective, params: Params, tokens_BxT: jax.Array, *, rows: int
) -> dict[str, Any]:
    """Returns metrics of every layer by name, before the update on a batch of windows.

    Arrays have a number for each layer: "weights" and "gradients" are the root mean square of all
    matrices of the block, and the others are what the blocks measure on the first microbatch
    (`decoder.measure_layers`). The gradient is that of the whole batch, before the clip. Scalars
    are of the embedding and the head, such as "head/weights". `rows` is that of `train_step`.
    """
    microbatches = _count_windows(config, tokens_BxT) // rows
    _, grads = objective.loss_and_gradient(params, tokens_BxT, microbatches, config.accumulation)
    measures = objective.measure_layers(params, tokens_BxT[::microbatches])
    for name, tree in (("weights", params), ("gradients", grads)):
        matrices = [matrix for _, matrix in decoder.block_matrices(tree)]
        measures[name] = jax.vmap(decoder.root_mean_square)(*matrices)
        for part in ("embedding", "head"):
            if part in tree:
                measures[f"{part}/{name}"] = decoder.root_mean_square(tree[part])
    return measures


def _count_windows(config: Config, tokens_BxT: jax.Array) -> int:
    """Returns the number of windows of the first length that a batch has the tokens of."""
    B, L = tokens_BxT.shape[0], tokens_BxT.shape[1] - 1
    return B * L // config.clock.length


def _relative_updates(updates: Any, params: Any) -> jax.Array:
    """Returns, for each parameter, the norm of the update over the norm of the parameter.

    The ratio is 0 for a parameter of norm 0. All ratios are one array, in the order of the tree's
    leaves, because the host reads each array on its own.
    """
    norms = [
        jnp.stack([optax.tree.norm(leaf) for leaf in jax.tree.leaves(tree)])
        for tree in (updates, params)
    ]
    return jnp.where(norms[1] > 0, norms[0] / norms[1], 0.0)


def _average_time(clock: Clock, step: jax.Array, batch_size: int) -> dict[str, Any]:
    """Returns `time` and `span` for `averaging.average_params`, in a run whose batch grows.

    `time` is the run's time after the update, and `span` the time that the update takes. Without
    growth, time is the number of updates, which averages count themselves: there is nothing to
    return.
    """
    if not clock.grows:
        return {}
    phase = clock.phase_of_batch(batch_size)
    return {"time": phase.time + (step + 1 - phase.step) * phase.span, "span": phase.span}
