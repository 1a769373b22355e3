"""Summary that a start prints: model, data and devices of a run, the memory and disk it needs."""

import math
from collections.abc import Callable

from anytime_jax.checkpoints.retention import checkpoint_bytes, retention_policy
from anytime_jax.config.schema import MODELS, Config
from anytime_jax.distributed import sharding
from anytime_jax.distributed.device_specs import device_spec
from anytime_jax.formats import model_reader
from anytime_jax.formatting import format_bytes, format_count
from anytime_jax.models.decoder import count_params
from anytime_jax.storage.files import free_bytes
from anytime_jax.storage.paths import storage_path
from anytime_jax.training.start_plan import Plan
from anytime_jax.training.state_memory import describe, measure_state, state_bytes


def print_summary(plan: Plan, say: Callable[[str], None]) -> None:
    """Prints model, data and devices of a run, the memory and disk it needs, and where it ends."""
    config, mesh = plan.config, plan.mesh
    counts, device = count_params(config.model), mesh.devices.flat[0]
    axes = " x ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
    spec = device_spec(device)
    speed = f"{spec.peak_flops / 1e12:,.0f} TFLOP/s peak" if spec else "unknown device peak: no MFU"
    state = measure_state(plan.program.abstract_state)
    memory = describe(state, config, sharding.device_memory(mesh))
    say(f"run      {config.name} in {config.run_dir}")
    if config.branch_step is not None:
        point = config.clock.describe(config.branch_step)
        say(f"branch   of {config.branch.from_run}, which it leaves at {point}")
    say(f"rate     {_describe_rate(config)}")
    if config.clock.growth:
        say(f"batch    {_describe_batch(plan)}")
    if config.initial_weights and plan.step == 0:
        say(f"weights  pretrained, from {config.initial_weights}")
    say(
        f"model    {MODELS.name_of(type(config.model))}, "
        f"{format_count(counts['blocks'])} in blocks, "
        f"{format_count(counts['all'])} parameters in all; averages "
        + (", ".join(config.averaging_rules) or "none")
    )
    say(f"export   {model_reader.describe_loader(config.model)}")
    say(f"data     {_describe_data(plan)}")
    say(f"device   {mesh.size} x {device.device_kind} ({axes}), {speed}")
    say(f"memory   {memory}")
    say(f"disk     {_describe_disk(plan)}")
    end = config.clock.describe(int(plan.stop)) if math.isfinite(plan.stop) else "no end"
    say(f"from     {config.clock.describe(plan.step)} to {end}")


def _describe_rate(config: Config) -> str:
    """The learning rate: its kind and settings, and where it ends."""
    schedule, decay = config.schedule.settings, config.decay
    text = ", ".join(
        [config.schedule.name, *(f"{name} {value}" for name, value in schedule.items())]
    )
    if decay.horizon:
        text += f"; {decay.shape} decay to {decay.floor:g} of the peak"
    if config.horizon is not None:
        return f"{text}; ends at {config.clock.describe(config.horizon)}"
    if config.branch_step is None:
        return f"{text}; no end"
    return f"{text}; NO DECAY: this branch trains on as its trunk does"


def _describe_batch(plan: Plan) -> str:
    """The batch sizes up to the stop."""
    config = plan.config
    first, *later = config.clock.stages
    text = f"{first.span * config.batch_size:,} sequences"
    for stage in later:
        if stage.step < plan.stop:
            text += f"; {stage.span * config.batch_size:,} from {config.clock.describe(stage.step)}"
    if config.batch_growth == "seesaw":
        text += "; the rate falls by sqrt(2) where the batch doubles, and nowhere else"
    return text


def _describe_data(plan: Plan) -> str:
    """The dataset: its size, and how often it is read up to the stop and in an evaluation."""
    config, dataset = plan.config, plan.dataset
    train, validation = dataset.splits["train"], dataset.splits["validation"].windows
    text = f"{dataset.path}: {format_count(train.tokens)} tokens"
    if math.isfinite(plan.stop):
        passes = config.clock.samples(int(plan.stop)) / max(train.windows, 1)
        text += f", {passes:.3g} epochs to the stop"
    evaluated = config.eval_windows(validation) * dataset.length
    return f"{text}; {format_count(evaluated)} tokens in an evaluation"


def _describe_disk(plan: Plan) -> str:
    """The size of a checkpoint, and the most that the checkpoints take up to the stop."""
    policy, free = retention_policy(plan.config), free_bytes(storage_path(plan.config.run_dir))
    each = checkpoint_bytes(state_bytes(plan.program.abstract_state))
    if math.isinf(plan.stop):
        return f"{format_bytes(each)} a checkpoint"
    kept = policy.count_kept(plan.step, int(plan.stop))
    # A new one is written before the oldest of the rolling ones is deleted.
    total = (kept + policy.rolling + 1) * each
    return (
        f"{format_bytes(each)} a checkpoint, {kept} to keep + {policy.rolling} rolling + 1 being "
        f"written: {format_bytes(total)} at most"
        + (f"; {format_bytes(free)} free" if math.isfinite(free) else "")
        + (", which is TOO LITTLE" if total > free else "")
    )
