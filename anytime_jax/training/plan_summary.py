"""Summary of a plan: model, data and devices of a run, the memory and disk it needs."""

import math
from collections.abc import Callable, Iterator
from typing import cast

from anytime_jax.checkpoints.retention import checkpoint_bytes, retention_policy
from anytime_jax.config.model import MODELS
from anytime_jax.config.run_config import Config
from anytime_jax.config.stages import RunStage, describe_weights
from anytime_jax.distributed import processes, sharding
from anytime_jax.distributed.device_specs import device_spec
from anytime_jax.formats import model_reader
from anytime_jax.formatting import format_bytes, format_count
from anytime_jax.models.attention import choose_implementation
from anytime_jax.models.decoder import count_params
from anytime_jax.storage.files import free_bytes
from anytime_jax.training.evaluator import evaluated_sets
from anytime_jax.training.plan import Plan
from anytime_jax.training.state_memory import measure_state, state_bytes


def print_summary(plan: Plan, say: Callable[[str], None]) -> None:
    """Prints model, data and devices of a run, the memory and disk it needs, and where it ends."""
    if not processes.is_primary():
        return
    config, mesh = plan.config, plan.mesh
    counts, device = count_params(config.model), mesh.devices.flat[0]
    axes = " x ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
    spec = device_spec(device)
    speed = f"{spec.peak_flops / 1e12:,.0f} TFLOP/s peak" if spec else "unknown device peak: no MFU"
    state = plan.program.abstract_state
    memory = measure_state(state, config.accumulation, plan.program.microbatches)
    say(f"run      {config.name} in {config.directory}")
    if config.branch_step is not None:
        point = config.clock.describe(config.branch_step)
        say(f"branch   of {config.branch.from_run}, which it leaves at {point}")
    say(f"rate     {_describe_rate(config)}")
    if config.model.base_width:
        growth = config.model.width_growth
        say(f"width    mup, {growth:g} x the base of {config.model.base_width} (docs/width.md)")
    if config.clock.grows:
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
    for line in (*_describe_data(plan), *_describe_evaluation(plan)):
        say(line)
    say(f"device   {mesh.size} x {device.device_kind} ({axes}), {speed}")
    say(f"memory   {memory.describe(sharding.device_memory(mesh))}")
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
        start, end = config.branch_step, cast(int, config.horizon)
        updates = end - (config.clock.branch_step(end) if start is None else start)
        text += f"; {decay.shape} decay to {decay.floor:g} of the peak in {updates:,} updates"
        if updates == 1:
            text += ": NO DECAY, as the first one has the rate before it"
    if config.horizon is not None:
        return f"{text}; ends at {config.clock.describe(config.horizon)}"
    if config.branch_step is None:
        return f"{text}; no end"
    return f"{text}; NO DECAY: this branch trains on as its trunk does"


def _describe_batch(plan: Plan) -> str:
    """The batch sizes up to the stop."""
    config = plan.config
    first, *later = config.clock.phases
    text = f"{first.span * config.batch_size:,} sequences"
    for phase in later:
        if phase.step < plan.stop:
            text += f"; {phase.span * config.batch_size:,} from {config.clock.describe(phase.step)}"
    if config.batch_growth == "seesaw":
        text += "; the rate falls by sqrt(2) where the batch doubles, and nowhere else"
    return text


def _describe_data(plan: Plan) -> Iterator[str]:
    """The sources with their sizes and passes, and the stages that follow the first one."""
    config = plan.config
    for name, dataset in plan.datasets.items():
        train = dataset.splits["train"]
        fingerprint = f"fingerprint {dataset.fingerprint[:12]}"
        text = f"{dataset.path}: {format_count(train.tokens)} tokens, {fingerprint}"
        label = f"{name}, " if len(plan.datasets) > 1 else ""
        yield f"data     {label}{text}, {_describe_passes(plan, name)}"
    if config.data.documents == "mask":
        yield f"masks    {_describe_masks(plan)}"
    if len(config.run_stages) > 1 or len(plan.datasets) > 1:
        for number, stage in enumerate(config.run_stages):
            yield f"stage    {_describe_stage(plan, number, stage)}"


def _describe_evaluation(plan: Plan) -> Iterator[str]:
    """The size of an evaluation on every validation set, and its weight in the mean."""
    sets, weights = list(evaluated_sets(plan.config, plan.step)), plan.set_weights
    for label, name, model in sets:
        prefix = f"{label} (weight {weights.get(label, 0):.3g}): " if len(sets) > 1 else ""
        available = plan.sets[name].splits["validation"].windows(model.length)
        windows = plan.config.eval_windows(available, model.length)
        tokens = format_count(windows * model.length)
        yield f"eval     {prefix}{tokens} tokens in {windows:,} windows"


def _describe_masks(plan: Plan) -> str:
    """How documents are kept apart, and what happens if a window has too many."""
    config, platform = plan.config, plan.mesh.devices.flat[0].platform
    implementation = choose_implementation(config.model, platform, config.model.length)
    surplus = "are merged" if config.data.surplus == "merge" else "end the run"
    return (
        f"a token attends to its own document only ({implementation} attention); more than "
        f"{config.data.most_documents} documents in a window {surplus}"
    )


def _describe_passes(plan: Plan, name: str) -> str:
    """How often a source is read: up to the stop if it is the only source, or to 1x, 2x and 4x."""
    config = plan.config
    if len(plan.datasets) == 1 and math.isfinite(plan.stop):
        return f"{_passes(plan, name, int(plan.stop)):.3g} epochs to the stop"
    points = {f"{2**i}x": config.clock.step_at(f"{2**i}x") for i in range(3)}
    passes = [f"{_passes(plan, name, step):.3g} at {point}" for point, step in points.items()]
    return f"epochs: {', '.join(passes)}"


def _passes(plan: Plan, name: str, step: int) -> float:
    """Tokens read of a source in a number of updates, divided by its number of tokens."""
    return _tokens_read(plan, name, step) / plan.datasets[name].splits["train"].tokens


def _tokens_read(plan: Plan, name: str, step: int) -> int:
    tokens, before, length = 0, 0, 0
    for stage, counts in plan.config.windows_read(step):
        if stage.model.length != length:
            length, before = stage.model.length, 0
        count = counts.get(name, before)
        tokens, before = tokens + (count - before) * length, count
    return tokens


def _describe_stage(plan: Plan, number: int, stage: RunStage) -> str:
    """Where a stage begins, its windows and sources, and how much of it was read before."""
    config, mixture = plan.config, describe_weights(stage.weights)
    text = f"from {config.clock.describe(stage.step)}: windows of {stage.model.length:,} tokens"
    text += f", {mixture}" if len(stage.weights) > 1 else f" of {next(iter(dict(stage.weights)))}"
    before = config.run_stages[number - 1] if number else stage
    if before.model.length == stage.model.length:
        return text
    share = _share_seen(plan, number, stage)
    return f"{text}; {share:.0%} of its tokens were seen in shorter or longer windows"


def _share_seen(plan: Plan, number: int, stage: RunStage) -> float:
    """The expected share of a stage's tokens that the run had read before a change of length."""
    total = sum(weight for _, weight in stage.weights)
    return sum(
        weight / total * min(1.0, _passes(plan, name, stage.step)) for name, weight in stage.weights
    )


def _describe_disk(plan: Plan) -> str:
    """The size of a checkpoint, and the most that the checkpoints take up to the stop."""
    policy, free = retention_policy(plan.config), free_bytes(plan.run_dir)
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
