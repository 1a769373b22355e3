"""One update, one evaluation: the compiled functions and the state they pass on.

Legend of shape suffixes: B batch, L length, T = L + 1 tokens of a window, M microbatches.
"""

import dataclasses
import functools
import os
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from anytime_jax import averaging
from anytime_jax.checkpoints.train_state import TrainState
from anytime_jax.config.model import Dtype
from anytime_jax.config.schema import Config, OptimizerConfig
from anytime_jax.distributed import sharding
from anytime_jax.models import decoder
from anytime_jax.models.loss import mean_loss_from_hidden, token_losses_from_hidden
from anytime_jax.training.guard import get_guard_state
from anytime_jax.training.optimizer import Hyperparameters, make_optimizer

Metrics = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Program:
    """The compiled functions of a run on a mesh.

    The averages move at updates whose number is a multiple of `config.average_every`; elsewhere
    they stay in their buffers, at most average_every - 1 updates old.

    Attributes:
      init: makes the first state.
      abstract_state: its shapes, types and placement, without any array.
      state_shardings: where every leaf of the state lives.
      train_step: `(state, tokens_BxT, update_averages=True) -> (state, metrics)`, the state donated;
        `update_averages` is a Python bool, and each of its two values a program of its own.
      eval_step: `(params, tokens_BxT, weights_B) -> sum of token losses`, for any weight tree.
    """

    init: Callable[[], TrainState]
    abstract_state: TrainState
    state_shardings: Any
    train_step: Any
    eval_step: Callable[[decoder.Params, jax.Array, jax.Array], jax.Array]


def make_program(config: Config, mesh: Mesh) -> Program:
    """Returns the functions of a run; each is compiled when first called.

    Args:
      config: the run.
      mesh: the device mesh.

    Raises:
      ValueError: if the mesh does not divide the parameters.
    """

    def init() -> TrainState:
        return init_state(config, jax.random.key(config.seed))

    shapes = jax.eval_shape(init)
    placement = sharding.tree_shardings(shapes, decoder.PARAMETER_AXES, mesh)
    fetched = averaging.averages(placement.opt_state)
    if config.average_memory == "host":
        kept = averaging.replace_averages(placement.opt_state, sharding.with_host_memory(fetched))
        placement = placement._replace(opt_state=kept)
    else:
        fetched = None
    abstract_state = jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
        shapes,
        placement,
    )
    rows, whole = sharding.batch_sharding(mesh), sharding.replicated(mesh)
    constrain = sharding.ShardingConstraint(mesh)
    return Program(
        init=jax.jit(init, out_shardings=placement, compiler_options=fast_compile_options(mesh)),
        abstract_state=abstract_state,
        state_shardings=placement,
        train_step=jax.jit(
            functools.partial(
                train_step, config, config.schedule, config.optimizer, constrain, fetched
            ),
            static_argnums=2,  # by position: where places are given, JAX takes no keywords
            in_shardings=(placement, rows),
            out_shardings=(placement, whole),
            donate_argnums=0,
        ),
        eval_step=jax.jit(
            functools.partial(eval_step, config.model, constrain),
            in_shardings=(placement.params, rows, rows),
            out_shardings=whole,
        ),
    )


def init_state(config: Config, key: jax.Array) -> TrainState:
    """Returns the state that a run begins with, its random weights made from a key."""
    params = decoder.init_params(config.model, key)
    opt_state = _optimizer(config, config.schedule, config.optimizer).init(params)
    return TrainState(jnp.zeros((), jnp.int32), params, opt_state)


def _optimizer(
    config: Config, schedule: Callable[[Any], Any], numbers: OptimizerConfig | Hyperparameters
) -> optax.GradientTransformationExtraArgs:
    rest = config.averages, config.guard, config.average_every
    return make_optimizer(numbers, schedule, *rest)


def fast_compile_options(mesh: Mesh) -> dict[str, int]:
    """Returns how XLA is to compile what runs once: on a CPU in half the time, to the same numbers.

    Of the levels of optimisation, 1 is the lowest that gives the bits of the highest. What
    XLA_FLAGS says of it stands.
    """
    name = "xla_backend_optimization_level"
    chosen = name in os.environ.get("XLA_FLAGS", "")
    return {} if chosen or mesh.devices.flat[0].platform != "cpu" else {name: 1}


def train_step(
    config: Config,
    schedule: Callable[[jax.Array], jax.Array],
    numbers: OptimizerConfig | Hyperparameters,
    constrain: sharding.ShardingConstraint,
    fetched: Any,
    state: TrainState,
    tokens_BxT: jax.Array,
    update_averages: bool = True,
) -> tuple[TrainState, Metrics]:
    """Makes one update; see `Program.train_step`.

    Args:
      config: the run.
      schedule: its learning rate, by the updates done.
      numbers: its optimizer's.
      constrain: says where arrays lie on the devices.
      fetched: where averages that are kept in host memory go for the update; None elsewhere.
      state: what the update changes.
      tokens_BxT: a batch of windows.
      update_averages: whether the averages move.
    """
    # A batch that has grown is computed in more parts of the same size.
    microbatches = tokens_BxT.shape[0] * config.microbatches // config.batch_size
    value_and_grad = jax.value_and_grad(functools.partial(batch_mean_loss, config.model, constrain))
    loss, grads = _accumulate(value_and_grad, state.params, tokens_BxT, microbatches)
    grad_norm = optax.tree.norm(grads)
    held = state.opt_state
    if update_averages and fetched is not None:  # the output's sharding takes them back
        trees = jax.device_put(averaging.averages(held), fetched)
        held = averaging.replace_averages(held, trees)
    updates, opt_state = _optimizer(config, schedule, numbers).update(
        grads, held, state.params, value=loss, grad_norm=grad_norm, update_averages=update_averages
    )
    before, after = get_guard_state(state.opt_state), get_guard_state(opt_state)
    metrics = {
        "loss": loss,
        "lr": schedule(state.step),
        "grad_norm": grad_norm,
        "clipped": (grad_norm > config.optimizer.clip_norm).astype(jnp.float32),
        "update_norm": optax.tree.norm(updates),
        "recent_loss": before.mean,
        "spiked": after.spikes - before.spikes,
        "spikes": after.spikes,
        "skipped": after.skipped,
        "consecutive_skips": after.consecutive_skips,
    }
    params = cast(decoder.Params, optax.apply_updates(state.params, updates))
    return TrainState(state.step + 1, params, opt_state), metrics


def _accumulate(
    value_and_grad: Callable[[decoder.Params, jax.Array], tuple[jax.Array, Any]],
    params: decoder.Params,
    tokens_BxT: jax.Array,
    microbatches: int,
) -> tuple[jax.Array, Any]:
    """Loss and gradient of a batch, computed in equal parts one after another."""
    if microbatches == 1:
        return value_and_grad(params, tokens_BxT)
    B, T = tokens_BxT.shape
    # Row i goes to part i mod M, so that every device keeps a share of each part.
    parts_MxBxT = tokens_BxT.reshape(B // microbatches, microbatches, T).swapaxes(0, 1)

    def add(total: Any, part_BxT: jax.Array) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, value_and_grad(params, part_BxT)), None

    zero = jax.tree.map(jnp.zeros_like, jax.eval_shape(value_and_grad, params, parts_MxBxT[0]))
    total, _ = jax.lax.scan(add, zero, parts_MxBxT)
    return jax.tree.map(lambda x: x / microbatches, total)


def eval_step(
    config: decoder.ModelConfig,
    constrain: sharding.ShardingConstraint,
    params: decoder.Params,
    tokens_BxT: jax.Array,
    weights_B: jax.Array,
) -> jax.Array:
    """Returns the sum of the token losses of a batch, each row times its weight."""
    losses_BxL = batch_token_losses(config, constrain, params, tokens_BxT)
    return jnp.sum(losses_BxL.sum(axis=1) * weights_B)


def batch_token_losses(
    config: decoder.ModelConfig,
    constrain: sharding.ShardingConstraint,
    params: decoder.Params,
    tokens_BxT: jax.Array,
) -> jax.Array:
    """Returns the loss in nats of every token of a batch of windows, float32 of shape BxL."""
    return token_losses_from_hidden(*_before_loss(config, constrain, params, tokens_BxT))


def batch_mean_loss(
    config: decoder.ModelConfig,
    constrain: sharding.ShardingConstraint,
    params: decoder.Params,
    tokens_BxT: jax.Array,
) -> jax.Array:
    """Returns the mean of `batch_token_losses`, made for its gradient."""
    return mean_loss_from_hidden(*_before_loss(config, constrain, params, tokens_BxT))


def _before_loss(
    config: decoder.ModelConfig,
    constrain: sharding.ShardingConstraint,
    params: decoder.Params,
    tokens_BxT: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array, Dtype, sharding.ShardingConstraint]:
    """What a loss is made from: hidden_BxLxD, head_DxV, targets_BxL, and how."""
    tokens_BxT = constrain(tokens_BxT, ("batch", None))
    hidden_BxLxD = decoder.hidden(config, params, tokens_BxT[:, :-1], constrain)
    return hidden_BxLxD, params["head"], tokens_BxT[:, 1:], config.dtype, constrain
