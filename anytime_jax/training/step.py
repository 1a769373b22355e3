"""Training step and evaluation step: the jitted functions of a run and its initial state.

Shape suffixes: B batch, L length, T = L + 1 tokens of a window, M microbatches, S shards over data.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from anytime_jax.checkpoints.train_state import TrainState
from anytime_jax.config.clock import Clock
from anytime_jax.config.model import Dtype, ModelConfig
from anytime_jax.config.schema import Config, DataConfig
from anytime_jax.distributed import sharding
from anytime_jax.distributed.xla_settings import compiler_options, fast_compiler_options
from anytime_jax.errors import RunError
from anytime_jax.models import decoder, gradient_sum_vjp
from anytime_jax.models.attention import Documents, choose_implementation, find_documents
from anytime_jax.models.loss import (
    mean_loss_from_hidden,
    token_losses,
    token_losses_and_hits,
    token_losses_from_hidden,
)
from anytime_jax.training.bad_updates import get_guard_state
from anytime_jax.training.optimizer import make_optimizer

Metrics = dict[str, jax.Array]
RELATIVE_UPDATES = "relative_updates"  # the metric that has a number for every parameter


class Rates(NamedTuple):
    """Float32 scalars that the host computes for each update, arguments of the compiled update.

    One program then serves every schedule, peak and branch.

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
class DocumentRules:
    """How the documents in a window are treated.

    Attributes:
      end_of_text: id of the token that ends a document.
      masks: whether tokens attend to their own document only.
      most: documents of a window that are kept apart; more are merged into the last one.
      counts_boundaries: whether the loss of an end of text counts in training.
      refuses: whether a window with more documents is an error.
    """

    end_of_text: int
    masks: bool
    most: int
    counts_boundaries: bool
    refuses: bool = False

    def find(self, tokens_BxL: jax.Array) -> Documents | None:
        """Returns the documents of a batch that attention keeps apart, None for none."""
        return find_documents(tokens_BxL, self.end_of_text, self.most) if self.masks else None

    def check(self, tokens_BxT: np.ndarray, where: str) -> None:
        """Raises a RunError if a window that is refused is among those read, `where` says where."""
        if not (self.masks and self.refuses):
            return
        ends_BxL = tokens_BxT[:, :-2] == self.end_of_text
        documents = 1 + int(ends_BxL.sum(axis=1).max(initial=0))
        if documents > self.most:
            raise RunError(
                f"a window of {where} has {documents} documents, and config.data.most_documents = "
                f"{self.most}: set it to {documents} or more, which needs a new run or "
                "branch.change, or set config.data.surplus = 'merge'"
            )

    def boundary_scale(self, tokens_BxT: jax.Array) -> jax.Array | None:
        """Returns by what a batch's losses grow as some do not count; None if all do."""
        if self.counts_boundaries:
            return None
        counted = jnp.mean(tokens_BxT[:, :-1] != self.end_of_text, dtype=jnp.float32)
        return 1 / jnp.maximum(counted, 1 / tokens_BxT.size)


def document_rules(data: DataConfig, end_of_text: int) -> DocumentRules | None:
    """Returns how a run treats documents, None for one that joins them and counts every loss."""
    masks = data.documents == "mask"
    if not masks and data.boundary_loss:
        return None
    return DocumentRules(
        end_of_text,
        masks,
        data.most_documents,
        data.boundary_loss,
        refuses=data.surplus == "refuse",
    )


@dataclasses.dataclass(frozen=True)
class Program:
    """The jitted functions of a run on a mesh; each compiles when first called.

    Attributes:
      model: the decoder, with the length and the rotation of a stage.
      rules: how documents are treated; None if they are joined and every loss counts.
      init: `(seed=config.seed) -> state` before the first update, with random weights.
      init_from_params: `(params) -> state` before the first update; `params` are donated.
      abstract_state: shapes, types and shardings of the state, without any array.
      train_step: `(state, tokens_BxT, rates) -> (state, metrics)`, with `state` donated; `Rates`.
      eval_step: `(params, tokens_BxT, weights_B) -> sum of token losses`, for any weight tree.
      window_losses: `(params, tokens_BxT) -> sum of the token losses of each window`.
      token_losses: `(params, tokens_BxT) -> (losses_BxL, is_hit_BxL)`: the loss of each token, and
        whether it is the most likely one.
    """

    model: ModelConfig
    rules: DocumentRules | None
    init: Callable[..., TrainState]
    init_from_params: Callable[[decoder.Params], TrainState]
    abstract_state: TrainState
    train_step: Any
    eval_step: Callable[[decoder.Params, jax.Array, jax.Array], jax.Array]
    window_losses: Callable[[decoder.Params, jax.Array], jax.Array]
    token_losses: Callable[[decoder.Params, jax.Array], tuple[jax.Array, jax.Array]]


def make_program(
    config: Config,
    mesh: Mesh,
    rules: DocumentRules | None,
    *,
    model: ModelConfig | None = None,
    microbatches: int | None = None,
) -> Program:
    """Returns the functions of a run; raises InputError if the mesh does not divide a parameter.

    Documents are treated by `rules` (`document_rules`). `model` is the decoder of a stage, by
    default of the first one; `microbatches` is their number, which `config` may leave open.
    """
    model = config.model if model is None else model
    if microbatches is None:
        microbatches = 1 if isinstance(config.microbatches, str) else config.microbatches

    def init_from_params(params: decoder.Params) -> TrainState:
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
    rows, replicated = sharding.batch_sharding(mesh), sharding.replicated(mesh)
    options, fast_options = compiler_options(mesh), fast_compiler_options(mesh)
    constrain = sharding.ShardingConstraint(mesh)
    return Program(
        model=model,
        rules=rules,
        init=jax.jit(init, out_shardings=shardings, compiler_options=fast_options),
        init_from_params=jax.jit(
            init_from_params,
            out_shardings=shardings,
            donate_argnums=0,
            compiler_options=fast_options,
        ),
        abstract_state=abstract_state,
        train_step=jax.jit(
            functools.partial(
                train_step,
                config,
                constrain,
                model=model,
                rules=rules,
                rows=config.batch_size // microbatches,
            ),
            in_shardings=(shardings, rows, replicated),
            out_shardings=(shardings, replicated),
            donate_argnums=0,
            compiler_options=options,
        ),
        eval_step=jax.jit(
            functools.partial(eval_step, model, constrain, rules=rules),
            in_shardings=(shardings.params, rows, rows),
            out_shardings=replicated,
            compiler_options=options,
        ),
        window_losses=jax.jit(
            functools.partial(window_losses, model, constrain, rules=rules),
            in_shardings=(shardings.params, rows),
            out_shardings=rows,
            compiler_options=options,
        ),
        token_losses=jax.jit(
            functools.partial(
                batch_token_losses,
                model,
                constrain,
                of_logits=token_losses_and_hits,
                rules=rules,
            ),
            in_shardings=(shardings.params, rows),
            out_shardings=rows,
            compiler_options=options,
        ),
    )


def trace_update(program: Program, config: Config, mesh: Mesh) -> jax.stages.Traced:
    """Returns the train step traced for a batch of a run, of its first size."""
    length = program.model.length
    shape = (config.clock.tokens_per_step // length, length + 1)
    rows = sharding.batch_sharding(mesh)
    tokens_BxT = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=rows)
    rate = jax.ShapeDtypeStruct((), jnp.float32, sharding=sharding.replicated(mesh))
    return program.train_step.trace(program.abstract_state, tokens_BxT, Rates(rate, rate))


def lower_update(program: Program, config: Config, mesh: Mesh) -> jax.stages.Lowered:
    """Returns the train step lowered for the mesh, whose devices need not exist."""
    return _lower(trace_update(program, config, mesh), mesh)


def lower_evaluation(program: Program, config: Config, mesh: Mesh) -> jax.stages.Lowered:
    """Returns the evaluation step lowered for the mesh, whose devices need not exist."""
    rows = sharding.batch_sharding(mesh)
    length = program.model.length
    size = sharding.round_up_rows(mesh, config.eval_rows(length))
    tokens_BxT = jax.ShapeDtypeStruct((size, length + 1), jnp.int32, sharding=rows)
    weights_B = jax.ShapeDtypeStruct((size,), jnp.float32, sharding=rows)
    eval_step: Any = program.eval_step
    return _lower(eval_step.trace(program.abstract_state.params, tokens_BxT, weights_B), mesh)


def _lower(traced: jax.stages.Traced, mesh: Mesh) -> jax.stages.Lowered:
    platform = mesh.devices.flat[0].platform
    return traced.lower(lowering_platforms=("cuda" if platform == "gpu" else platform,))


def train_step(
    config: Config,
    constrain: sharding.ShardingConstraint,
    state: TrainState,
    tokens_BxT: jax.Array,
    rates: Rates,
    *,
    model: ModelConfig,
    rules: DocumentRules | None,
    rows: int,
) -> tuple[TrainState, Metrics]:
    """Returns the state after one update on a batch of windows, and its metrics.

    `rows` is the number of windows of a microbatch, of the first length. A batch that has grown is
    computed in more microbatches of the same size.
    """
    B, L = tokens_BxT.shape[0], tokens_BxT.shape[1] - 1
    windows = B * L // config.clock.length  # of the first length
    microbatches = windows // rows
    loss, grads = loss_and_gradient(
        model,
        constrain,
        state.params,
        tokens_BxT,
        microbatches,
        config.accumulation,
        rules,
    )
    grad_norm = optax.tree.norm(grads)
    optimizer = make_optimizer(
        config,
        learning_rate=lambda count: rates.learning_rate,
        relative_time=lambda: rates.relative_time,
        constrain_stack=constrain.split_stack,
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
    params = cast(decoder.Params, optax.apply_updates(state.params, updates))
    return TrainState(state.step + 1, params, opt_state), metrics


def _relative_updates(updates: Any, params: Any) -> jax.Array:
    """Returns the norm of each parameter's update over its own norm, 0 where that is 0.

    They are one array, in the order of the tree's leaves: the host reads each array on its own.
    """
    norms = [
        jnp.stack([optax.tree.norm(leaf) for leaf in jax.tree.leaves(tree)])
        for tree in (updates, params)
    ]
    return jnp.where(norms[1] > 0, norms[0] / norms[1], 0.0)


def _average_time(clock: Clock, step: jax.Array, batch_size: int) -> dict[str, Any]:
    """Returns the time after the update and the time that it takes, for averages in a growing run.

    Without growth the time is the number of updates, which averages count themselves.
    """
    if not clock.growth:
        return {}
    stage = clock.stage_of_batch(batch_size)
    return {"time": stage.time + (step + 1 - stage.step) * stage.span, "span": stage.span}


def loss_and_gradient(
    config: decoder.ModelConfig,
    constrain: sharding.ShardingConstraint,
    params: decoder.Params,
    tokens_BxT: jax.Array,
    microbatches: int,
    accumulation: Dtype = "float32",
    rules: DocumentRules | None = None,
) -> tuple[jax.Array, Any]:
    """Returns the mean loss and gradient of a batch, float32.

    Each part of the mesh axis `data` accumulates the gradient of its rows, in the type
    `accumulation`. The parts are summed once an update, not in every microbatch, unless a mesh with
    other axes has a kernel of attention that cannot be mapped over them: cuDNN's for packed
    documents.
    """
    scale = None if rules is None else rules.boundary_scale(tokens_BxT)

    def of_part(
        constrain: sharding.ShardingConstraint,
        params: decoder.Params,
        tokens_BxT: jax.Array,
        scale: jax.Array | None,
    ) -> tuple[jax.Array, Any]:
        def loss_and_sums(sums: Any, tokens_BxT: jax.Array) -> tuple[jax.Array, Any]:
            return loss_and_gradient_sums(config, constrain, params, sums, tokens_BxT, rules, scale)

        dtype = accumulation if microbatches > 1 else "float32"
        zeros = optax.tree.zeros_like(params, dtype=dtype)
        zeros = decoder.split_layers(config, zeros)
        loss, sums = _accumulate(loss_and_sums, zeros, tokens_BxT, microbatches)
        return loss, optax.tree.cast(decoder.stack_layers(config, sums), jnp.float32)

    mesh = constrain.mesh

    def mean(sums: tuple[jax.Array, Any], parts: int = 1) -> tuple[jax.Array, Any]:
        return jax.tree.map(lambda leaf: leaf / (parts * microbatches), sums)

    if mesh is None or mesh.shape["data"] == 1:
        return mean(of_part(constrain, params, tokens_BxT, scale))
    parts = mesh.shape["data"]
    stored = sharding.parameter_shardings(params, decoder.parameter_axes(config), mesh)
    params = _gather(config, constrain, params)
    if parts == mesh.size:
        local = dataclasses.replace(constrain, is_local=True)

        def of_device(*arguments: Any) -> tuple[jax.Array, Any]:
            loss, grads = of_part(local, *arguments)
            return jax.lax.psum(loss, "data"), jax.tree.map(_sum_over_data, grads, stored)

        whole, rows = PartitionSpec(), PartitionSpec("data")
        of_devices = jax.shard_map(
            of_device,
            mesh=mesh,
            in_specs=(whole, rows, whole),
            out_specs=(whole, jax.tree.map(lambda place: place.spec, stored)),
            check_vma=False,  # weights would become varying, and their gradients sums in each loop
        )
        return mean(of_devices(params, tokens_BxT, scale), parts)
    path = choose_implementation(config, constrain.platform, tokens_BxT.shape[1] - 1)
    if path == "cudnn" and rules is not None and rules.masks:
        return mean(of_part(constrain, params, tokens_BxT, scale))
    within = dataclasses.replace(constrain, batch_axes=("fsdp",))
    tokens_SxBxT = tokens_BxT.reshape(parts, -1, tokens_BxT.shape[1])
    of_rows = functools.partial(of_part, within)
    of_parts = jax.vmap(of_rows, in_axes=(None, 0, None), spmd_axis_name="data")
    losses, grads = of_parts(params, tokens_SxBxT, scale)
    grads = jax.tree.map(lambda leaf: leaf.sum(axis=0), grads)
    return mean((losses.sum(), jax.lax.with_sharding_constraint(grads, stored)), parts)


def _sum_over_data(grad: jax.Array, stored: NamedSharding) -> jax.Array:
    """Returns a device's part of the sum of the gradients of all parts of `data`."""
    if "data" not in stored.spec:
        return jax.lax.psum(grad, "data")
    axis = stored.spec.index("data")
    # Parts on an axis of their own: TPUs sum others whole where their sizes are odd.
    parts = jax.lax.axis_size("data")
    split = (*grad.shape[:axis], parts, -1, *grad.shape[axis + 1 :])
    return jax.lax.psum_scatter(grad.reshape(split), "data", scatter_dimension=axis)


def _gather(
    config: decoder.ModelConfig, constrain: sharding.ShardingConstraint, params: decoder.Params
) -> decoder.Params:
    """Returns parameters gathered over `data`, in 16 bits where only products of 16 bits use them.

    Such products round the parameters anyway.
    """
    if constrain.mesh is None or constrain.mesh.shape["data"] == 1:
        return params
    dtypes: dict[str, Any] = {}
    if decoder.block_class(config) is decoder.Block:
        dtypes = dict.fromkeys((*decoder.MATRIX_AXES, "head"), config.dtype)

    def rounded(path: Any, leaf: jax.Array) -> jax.Array:
        return leaf.astype(dtypes.get(path[-1].key, leaf.dtype))

    axes = decoder.parameter_axes(config)
    places = sharding.parameter_shardings(params, axes, constrain.mesh, gathered=True)
    params = jax.tree_util.tree_map_with_path(rounded, params)
    return jax.lax.with_sharding_constraint(params, places)


def _accumulate(
    loss_and_sums: Callable[[Any, jax.Array], tuple[jax.Array, Any]],
    zeros: Any,
    tokens_BxT: jax.Array,
    microbatches: int,
) -> tuple[jax.Array, Any]:
    """Returns the sums of the microbatches' losses and gradients.

    `loss_and_sums` is a function of sums and tokens, as for `gradient_sum_vjp`.
    """
    B, T = tokens_BxT.shape
    # Row i goes to microbatch i mod M, so that every device keeps a share of each.
    tokens_MxBxT = tokens_BxT.reshape(B // microbatches, microbatches, T).swapaxes(0, 1)

    def add(total: tuple[jax.Array, Any], tokens_BxT: jax.Array) -> tuple[Any, None]:
        (loss, _), vjp = jax.vjp(lambda sums: loss_and_sums(sums, tokens_BxT), zeros)
        (sums,) = vjp((jnp.ones_like(loss), total[1]))
        return (total[0] + loss, sums), None

    total, _ = jax.lax.scan(add, (jnp.zeros((), jnp.float32), zeros), tokens_MxBxT)
    return total


def eval_step(
    config: decoder.ModelConfig,
    constrain: sharding.ShardingConstraint,
    params: decoder.Params,
    tokens_BxT: jax.Array,
    weights_B: jax.Array,
    rules: DocumentRules | None = None,
) -> jax.Array:
    """Returns the sum of a batch's token losses, each row multiplied by its weight."""
    return jnp.sum(window_losses(config, constrain, params, tokens_BxT, rules) * weights_B)


def window_losses(
    config: decoder.ModelConfig,
    constrain: sharding.ShardingConstraint,
    params: decoder.Params,
    tokens_BxT: jax.Array,
    rules: DocumentRules | None = None,
) -> jax.Array:
    """Returns the sum of the token losses of each window."""
    return batch_token_losses(config, constrain, params, tokens_BxT, rules=rules).sum(axis=1)


def batch_mean_loss(
    config: decoder.ModelConfig,
    constrain: sharding.ShardingConstraint,
    params: decoder.Params,
    tokens_BxT: jax.Array,
    rules: DocumentRules | None = None,
    boundary_scale: jax.Array | None = None,
) -> jax.Array:
    """Returns the mean loss in nats of the tokens of a batch, with a cheap gradient.

    The gradient has the z-loss of the configuration, and the loss has not. With `boundary_scale`,
    the losses of ends of text do not count, and the others are multiplied by it.
    """
    loss_and_sums = functools.partial(loss_and_gradient_sums, config, constrain, params, None)
    return loss_and_sums(tokens_BxT, rules, boundary_scale)[0]


def loss_and_gradient_sums(
    config: decoder.ModelConfig,
    constrain: sharding.ShardingConstraint,
    params: decoder.Params,
    sums: decoder.Params | None,
    tokens_BxT: jax.Array,
    rules: DocumentRules | None,
    boundary_scale: jax.Array | None,
) -> tuple[jax.Array, decoder.Params | None]:
    """Returns `batch_mean_loss`, and the sums if there are any, as for `gradient_sum_vjp`."""
    if sums is not None:  # the blocks are read in the loop over layers
        params, sums = gradient_sum_vjp.read_except("blocks", params, sums)
    hidden_BxLxD, targets_BxL, block_sums = _run_model(
        config, constrain, params, tokens_BxT, rules, sums and sums["blocks"]
    )
    if sums is not None:
        sums = {**sums, "blocks": block_sums}
    weights_BxL = None
    if rules is not None and boundary_scale is not None:
        weights_BxL = jnp.where(tokens_BxT[:, :-1] == rules.end_of_text, 0, boundary_scale)
    loss = mean_loss_from_hidden(
        hidden_BxLxD,
        decoder.head(config, params),
        targets_BxL,
        config.dtype,
        constrain,
        config.z_loss,
        weights_BxL,
    )
    return cast(jax.Array, loss), sums


def batch_token_losses(
    config: decoder.ModelConfig,
    constrain: sharding.ShardingConstraint,
    params: decoder.Params,
    tokens_BxT: jax.Array,
    of_logits: Callable[[jax.Array, jax.Array], Any] = token_losses,
    rules: DocumentRules | None = None,
) -> Any:
    """Returns the loss in nats of every token of a batch, float32 of shape BxL.

    `of_logits` is as in `token_losses_from_hidden`.
    """
    params = _gather(config, constrain, params)
    hidden_BxLxD, targets_BxL, _ = _run_model(config, constrain, params, tokens_BxT, rules)
    return token_losses_from_hidden(
        hidden_BxLxD,
        decoder.head(config, params),
        targets_BxL,
        config.dtype,
        constrain,
        of_logits,
    )


def _run_model(
    config: decoder.ModelConfig,
    constrain: sharding.ShardingConstraint,
    params: decoder.Params,
    tokens_BxT: jax.Array,
    rules: DocumentRules | None,
    block_sums: Any = None,
) -> tuple[jax.Array, jax.Array, Any]:
    """Returns the hidden states of a batch of windows, the targets, and the sums of the blocks."""
    tokens_BxT = constrain(tokens_BxT, ("batch", None))
    inputs_BxL = tokens_BxT[:, :-1]
    documents = None if rules is None else rules.find(inputs_BxL)
    hidden_BxLxD, block_sums = decoder.hidden_and_gradient_sums(
        config, params, block_sums, inputs_BxL, constrain, documents
    )
    return hidden_BxLxD, tokens_BxT[:, 1:], block_sums
