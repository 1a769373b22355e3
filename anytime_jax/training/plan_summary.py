"""Summary of a plan in words: what a start will do, and on request all that it has found."""

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


def print_summary(plan: Plan, say: Callable[[str], None], verbose: bool = False) -> None:
    """Prints what a start will do; with `verbose`, also what else it has found."""
    if not processes.is_primary():
        return
    for line in (*_describe_start(plan), *(_describe_details(plan) if verbose else ())):
        say(line)


def _describe_start(plan: Plan) -> Iterator[str]:
    """What is trained, from where to where, what is printed and written, and how to end it."""
    config, clock = plan.config, plan.config.clock
    counts, device = count_params(config.model), plan.mesh.devices.flat[0].device_kind
    yield f"run      {config.name} in {config.directory}, on {plan.mesh.size} x {device}"
    if config.branch_step is not None:
        point = clock.describe(config.branch_step)
        yield f"branch   of {config.branch.from_run}, which it leaves at {point}"
    if config.initial_weights and plan.step == 0:
        yield f"weights  pretrained, from {config.initial_weights}"
    yield (
        f"model    {MODELS.name_of(type(config.model))}, {format_count(counts['blocks'])} "
        f"parameters in its blocks, {format_count(counts['all'])} in all"
    )
    yield from _describe_data(plan)
    if plan.is_complete():
        yield f"at       {clock.describe(plan.step)}, its stop or later: there is nothing to train"
    else:
        end = clock.describe(int(plan.stop)) if math.isfinite(plan.stop) else "no end"
        yield f"from     {clock.describe(plan.step)} to {end}"
    yield "time     to the stop is in every line of progress, at the speed since the line before"
    budget, each = clock.chinchilla_tokens, clock.chinchilla_tokens / counts["blocks"]
    yield (
        f"1x       is {format_count(budget)} tokens, {each:.3g} for each parameter of the blocks "
        "(a Chinchilla budget has about 20)"
    )
    yield f"rate     {_describe_rate(config)}"
    yield f"losses   {_describe_losses(config)}"
    yield f"writes   {_describe_writes(plan)}"
    yield "Ctrl-C   saves and ends the run at any time; the same command resumes it"


def _describe_details(plan: Plan) -> Iterator[str]:
    """The settings, sizes and devices that `_describe_start` leaves out."""
    config, mesh = plan.config, plan.mesh
    settings = (f"{name} {value}" for name, value in config.schedule.settings.items())
    yield f"schedule {', '.join(settings)}"
    if config.model.base_width:
        growth = config.model.width_growth
        yield f"width    mup, {growth:g} x the base of {config.model.base_width} (docs/width.md)"
    if config.clock.grows:
        yield f"batch    {_describe_batch(plan)}"
    yield f"export   {model_reader.describe_loader(config.model)}"
    for name, dataset in plan.datasets.items():
        yield f"tokens   of {name} have the fingerprint {dataset.fingerprint[:12]}"
    if config.data.documents == "mask":
        yield f"masks    {_describe_masks(plan)}"
    yield from _describe_evaluation(plan)
    device = mesh.devices.flat[0]
    axes = " x ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
    spec = device_spec(device)
    speed = f"{spec.peak_flops / 1e12:,.0f} TFLOP/s peak" if spec else "unknown device peak: no MFU"
    yield f"device   {mesh.size} x {device.device_kind} ({axes}), {speed}"
    state = plan.program.abstract_state
    memory = measure_state(state, config.accumulation, plan.program.microbatches)
    yield f"memory   {memory.describe(sharding.device_memory(mesh))}"


def _describe_rate(config: Config) -> str:
    """The kind of the learning rate, and where it ends."""
    decay, text = config.decay, config.schedule.name
    if decay.horizon:
        start, end = config.branch_step, cast(int, config.horizon)
        updates = end - (config.clock.branch_step(end) if start is None else start)
        text += f"; {decay.shape} decay to {decay.floor:g} of the peak in {updates:,} updates"
        if updates == 1:
            text += ": NO DECAY, as the first one has the rate before it"
    if config.horizon is not None:
        return f"{text}; ends at {config.clock.describe(config.horizon)}"
    if config.branch_step is None:
        return f"{text}, which has no end: the run can be continued past any stop"
    return f"{text}; NO DECAY: this branch trains on as its trunk does"


def _describe_losses(config: Config) -> str:
    """When weights are evaluated, and which."""
    text = f"in nats per token, every {config.eval.every}, of the live weights (last)"
    if labels := ", ".join(config.averaging_rules):
        text += f" and of the averages {labels}"
    if "f25" in config.averaging_rules:
        text += "; f25 has half of its weight on the last 4% of the run"
    if config.eval.tasks:
        every = config.eval.tasks_every
        points = f"every {every}" if isinstance(every, str) else f"at {', '.join(every)}"
        text += f"; scores in {', '.join(config.eval.tasks)}, {points} and at the stop"
    return text


def _describe_batch(plan: Plan) -> str:
    """The batch sizes up to the stop."""
    config = plan.config
    first, *later = config.clock.phases
    text = f"{first.span * config.batch_size:,} sequences"
    for phase in later:
        if phase.step < plan.stop:
            text += f"; {phase.span * config.batch_size:,} from {config.clock.describe(phase.step)}"
    return text


def _describe_data(plan: Plan) -> Iterator[str]:
    """The sources with their sizes and passes, and the stages that follow the first one."""
    config = plan.config
    for name, dataset in plan.datasets.items():
        tokens = format_count(dataset.splits["train"].tokens)
        label = f"{name}, " if len(plan.datasets) > 1 else ""
        yield f"data     {label}{dataset.path}: {tokens} tokens, {_describe_passes(plan, name)}"
    if skip := config.data.skip:
        yield f"data     leaves out samples {', '.join(f'{x:,} to {y:,}' for x, y in skip)}"
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
    config, device = plan.config, plan.mesh.devices.flat[0]
    implementation = choose_implementation(config.model, device, config.model.length)
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
    return f"{text}; {share:.0%} of its tokens were read before, in windows of another length"


def _share_seen(plan: Plan, number: int, stage: RunStage) -> float:
    """The expected share of a stage's tokens that the run had read before a change of length."""
    total = sum(weight for _, weight in stage.weights)
    return sum(
        weight / total * min(1.0, _passes(plan, name, stage.step)) for name, weight in stage.weights
    )


def _describe_writes(plan: Plan) -> str:
    """What the run writes, and the most that its checkpoints take up to the stop."""
    policy, free = retention_policy(plan.config), free_bytes(plan.run_dir)
    each = checkpoint_bytes(state_bytes(plan.program.abstract_state))
    text = f"checkpoints, records and curves into {plan.config.directory}"
    if math.isinf(plan.stop):
        return f"{text}: {format_bytes(each)} a checkpoint"
    # A new one is written before the oldest of the rolling ones is deleted.
    most = policy.count_kept(plan.step, int(plan.stop)) + policy.rolling + 1
    text += f": up to {most} new checkpoints of {format_bytes(each)}"
    if most * each > free:
        text += f", {format_bytes(most * each)} in all, and {format_bytes(free)} free is TOO LITTLE"
    return text
