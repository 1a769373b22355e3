"""Checks of a run before its first update, each made once, at the place that `start` gives it."""

import bisect
import itertools
import json
import math
import re
import threading
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from anytime_jax import __version__, optimizers
from anytime_jax.averaging import LIVE, is_label
from anytime_jax.checkpoints import checkpoint_listing, metric_records, run_directory
from anytime_jax.checkpoints.retention import checkpoint_bytes
from anytime_jax.checkpoints.train_state import TrainState
from anytime_jax.config.fields import flatten
from anytime_jax.config.model import ModelConfig
from anytime_jax.config.schema import Config
from anytime_jax.data.dataset_info import DatasetInfo
from anytime_jax.data.windows import count_windows
from anytime_jax.distributed import jax_settings, processes, sharding
from anytime_jax.errors import InputError, format_value, naming
from anytime_jax.formatting import format_bytes
from anytime_jax.models import attention
from anytime_jax.storage.failures import check_directory
from anytime_jax.storage.files import directory_id, free_bytes
from anytime_jax.storage.paths import absolute_path, storage_path
from anytime_jax.training import due_steps
from anytime_jax.training.metric_writers import TENSORBOARD
from anytime_jax.training.state_memory import describe, measure_state, state_bytes
from anytime_jax.training.step import Program, trace_update

_PACKED_CAPABILITY = 9.0  # of GPUs whose cuDNN attention takes packed documents
_STORED_BYTES = (2, 4)  # of a number, as `array_checksums` sums them
_SUM_TOLERANCE = 1e-3  # of coefficients in float32


def check_thread() -> None:
    """Raises an InputError in any other thread than the main one.

    Python handles signals in the main thread alone, and at its end stops the threads that save.
    """
    thread = threading.current_thread()
    if thread is not threading.main_thread():
        raise InputError(
            f"training was called in the thread {thread.name!r}: a run trains in the main thread "
            "alone, which Ctrl-C and the end of the program let save; call it there, or start "
            "another process"
        )


def check_paths(config: Config) -> None:
    """Raises an InputError if a directory of the run or the data cannot be one."""
    with naming("config.run_dir"):
        run_dir = absolute_path(config.run_dir)
    run_directory.check_name(run_dir, f"config.run_dir = {format_value(config.run_dir)}")
    for name, path in (("run_dir", config.run_dir), ("data.path", config.data.path)):
        with naming(f"config.{name}"):
            stored = storage_path(path)
        check_directory(stored, f"config.{name} = {format_value(path)}")
    mirrors = [TENSORBOARD] if config.log.tensorboard else []
    parts = [checkpoint_listing.DIRECTORY, metric_records.DIRECTORY, *mirrors]
    run_directory.check_files(storage_path(config.run_dir), parts)


def check_agreement(config: Config, fall_back: bool) -> None:
    """Raises an InputError in every process if one has other settings than process 0."""
    flat = flatten(config.to_dict())
    versions = {"anytime_jax": __version__, "jax": jax.__version__}
    text = json.dumps({**flat, "--fall-back": fall_back, **versions}, default=str)
    own, first = json.loads(text), json.loads(processes.broadcast_text(text))
    with processes.fail_together():
        if differences := run_directory.describe_differences(first, own):
            raise InputError(
                f"process {jax.process_index()} has other settings than process 0 ({differences}): "
                "start all processes of a run with the same"
            )


def make_mesh(config: Config, devices: Sequence[Any] | None = None) -> Mesh:
    """Returns the device mesh of a run, over all devices by default.

    Raises an InputError if the configuration does not fit the devices.
    """
    devices = jax_settings.find_devices() if devices is None else devices
    mesh = sharding.make_mesh(config.mesh, devices)
    check_layout(config, mesh)
    return mesh


def check_layout(config: Config, mesh: Mesh) -> None:
    """Raises an InputError if batches, heads or the kind of attention do not fit a mesh."""
    shards, tensor = sharding.batch_shards(mesh), mesh.shape["tensor"]
    part = config.microbatch_size
    sizes = {"batch_size / microbatches": part, "eval.batch_size": config.eval.batch_size}
    for name, size in sizes.items():
        if size % shards:
            raise InputError(
                f"config.{name} = {size} is not divisible by the {shards} parts into which a "
                f"mesh of {mesh.size} devices splits a batch (mesh.data x mesh.fsdp): choose a "
                f"multiple of {shards}, or a mesh with fewer parts"
            )
    model = config.model
    for name, heads in (("heads", model.heads), ("kv_heads", model.key_heads)):
        if heads % tensor:
            raise InputError(
                f"config.model.{name} = {heads} is not divisible by config.mesh.tensor = {tensor}: "
                "choose a mesh that keeps heads whole"
            )
    for stage in config.stages:
        windows = part * config.clock.length // stage.model.length
        if windows % shards:
            point = config.clock.describe(stage.step)
            raise InputError(
                f"config.model.length = {stage.model.length} from {point}: a microbatch has "
                f"{windows} windows, which is not divisible by the {shards} parts into which a "
                f"mesh of {mesh.size} devices splits a batch: choose fewer microbatches, a larger "
                "batch_size, or a mesh with fewer parts"
            )
        _check_attention(config, stage.model, mesh)


def _check_attention(config: Config, model: ModelConfig, mesh: Mesh) -> None:
    """Raises an InputError if the kind of attention does not fit the devices or the length."""
    device = mesh.devices.flat[0]
    platform = device.platform
    path = attention.resolve_path(model, platform, model.length)
    capability = getattr(device, "compute_capability", None)
    if (
        config.data.documents == "mask"
        and path == "cudnn"
        and capability
        and float(capability) < _PACKED_CAPABILITY
    ):
        raise InputError(
            f"config.data.documents = 'mask' needs a Hopper GPU or a later one for cuDNN's packed "
            f"layout, and this {device.device_kind} has compute capability {capability}: set "
            "--config.model.attention=xla, whose mask takes memory of the length squared"
        )
    if need := attention.unmet_need(model.attention, model, platform, model.length):
        raise InputError(
            f"config.model.attention = {model.attention!r} needs {need}, which this run on a "
            f"{platform} does not have: try 'auto'"
        )


def check_update(config: Config, mesh: Mesh, program: Program) -> None:
    """Traces the update of a run with classes from other packages, whose errors show here.

    Raises an InputError if the update changes the form of the state.
    """
    if not config.packages():
        return
    before, after = program.abstract_state, trace_update(program, config, mesh).out_info[0]
    forms = [
        {
            jax.tree_util.keystr(path): f"{x.dtype}{list(x.shape)}"
            for path, x in jax.tree_util.tree_leaves_with_path(state)
        }
        for state in (before, after)
    ]
    for path, _ in jax.tree_util.tree_leaves_with_path(before.params):
        if bad := next((x.key for x in path if "/" in str(x.key)), None):
            raise InputError(
                f"config.model: {bad!r} is no name for a parameter, as checkpoints take / for a "
                "level of the tree: rename it"
            )
    for path, x in jax.tree_util.tree_leaves_with_path(before):
        if not jnp.issubdtype(x.dtype, jnp.number) or x.dtype.itemsize not in _STORED_BYTES:
            raise InputError(
                f"config.optimizer: {jax.tree_util.keystr(path)} of the state is {x.dtype}, and "
                "checkpoints store numbers of 2 or 4 bytes: convert it, a key by "
                "jax.random.key_data"
            )
        if not x.size:
            raise InputError(
                f"config.optimizer: {jax.tree_util.keystr(path)} of the state has the shape "
                f"{x.shape}, and checkpoints store no array without elements: leave it out, or "
                "put None or () there"
            )
    _check_readouts(program)
    for path in forms[0] | forms[1]:
        old, new = (form.get(path, "nothing") for form in forms)
        if old != new:
            raise InputError(
                f"config.optimizer: an update makes {path} of the state {new}, which was {old}: "
                "return the updates and the state with the same shapes and types"
            )


def _check_readouts(program: Program) -> None:
    """Raises an InputError if read-outs of an own optimizer cannot be told from other weights."""
    opt_state = program.abstract_state.opt_state
    found = jax.eval_shape(lambda x: (optimizers.iterates(x), optimizers.readouts(x)), opt_state)
    iterates, readouts = found
    for name in {**iterates, **readouts}:
        if not re.fullmatch(r"[A-Za-z]\w*", name) or name == LIVE or is_label(name):
            raise InputError(
                f"config.optimizer: {name!r} is no name for an iterate or a read-out: give a word "
                f"that is neither {LIVE!r} nor a label of an average such as 'f25'"
            )
    for name, terms in readouts.items():
        if unknown := ", ".join(terms.keys() - {LIVE, *iterates}):
            raise InputError(
                f"config.optimizer: the read-out {name!r} is a sum of {unknown}, and iterates() "
                f"returns {', '.join(iterates) or 'nothing'}: name these or {LIVE!r}"
            )
    if readouts:
        first = jax.jit(lambda: optimizers.readouts(program.init().opt_state))()
        for name, terms in jax.device_get(first).items():
            total = sum(map(float, terms.values()))
            if abs(total - 1) > _SUM_TOLERANCE:
                raise InputError(
                    f"config.optimizer: the coefficients of the read-out {name!r} sum to "
                    f"{total:.6g} before the first update: their sum must be 1"
                )


def check_capacity(config: Config, mesh: Mesh, abstract_state: TrainState) -> None:
    """Raises an InputError if state and gradient exceed memory, or a checkpoint the free disk.

    Activations are not counted: the compiler knows their memory, of which `Run.update` warns.
    """
    available, memory = sharding.device_memory(mesh), measure_state(abstract_state)
    if available is not None and memory.least(config) > available:
        raise InputError(
            f"config.model: {describe(memory, config, available)}, and activations come on top: "
            "choose a larger mesh.fsdp, fewer averages or a smaller model"
        )
    free, needed = (
        free_bytes(storage_path(config.run_dir)),
        checkpoint_bytes(state_bytes(abstract_state)),
    )
    if needed > free:
        raise InputError(
            f"config.run_dir = {config.run_dir!r}: a checkpoint takes {format_bytes(needed)} and "
            f"the disk has {format_bytes(free)} free: free some, choose a directory on another "
            "disk, or a smaller config.model"
        )


def check_data(config: Config, dataset: DatasetInfo) -> None:
    """Raises an InputError that names every setting that does not fit a dataset, and one that does.

    Pretrained weights fix the vocabulary; the dataset must match.
    """
    model = config.model
    fitting: dict[str, Any] = {}
    problems = []
    if model.vocab_size != dataset.vocab_size:
        problems.append(
            f"config.model.vocab_size = {model.vocab_size}, but it has {dataset.vocab_size}"
        )
        fitting["model.vocab_size"] = dataset.vocab_size
        if model.embedding_rows < dataset.vocab_size:
            fitting["model.embedding_rows"] = dataset.vocab_size
    for length in dict.fromkeys(stage.model.length for stage in config.stages):
        count_windows(dataset, "train", length)
    if not problems:
        return
    advice = "set " + " ".join(f"--config.{name}={value}" for name, value in fitting.items())
    if config.initial_weights and "model.vocab_size" in fitting:
        advice = f"prepare the text with the vocabulary of {config.initial_weights}"
    raise InputError(f"the dataset at {dataset.path} does not fit: {'; '.join(problems)}: {advice}")


def check_evaluated(config: Config, dataset: DatasetInfo) -> None:
    """Raises an InputError if a validation split has too few tokens for an evaluation.

    Of several sets, a small one is evaluated whole.
    """
    for length in dict.fromkeys(stage.model.length for stage in config.stages):
        tokens, given = count_windows(dataset, "validation", length) * length, config.eval.tokens
        if not isinstance(given, str) and given > tokens and len(config.sets) == 1:
            raise InputError(
                f"the validation split of {dataset.path} does not fit: config.eval.tokens = "
                f"{given:,}, but it has {tokens:,} in windows of {length:,}: set "
                "--config.eval.tokens=all"
            )


def check_not_lost(config: Config, step: int) -> None:
    """Raises an InputError if records show that a run without checkpoints had one after `step`."""
    run_dir = storage_path(config.run_dir)
    rows = metric_records.read_records(run_dir)
    if not rows:
        return
    saving = due_steps.saves(config, math.inf)
    saves = (x for x in range(step + 1, rows[-1].step) if saving.due(x))
    # A second save waits for the first one, which a kill can leave half-written.
    had_saved = next(itertools.islice(saves, 1, None), None) is not None
    is_removed = directory_id(run_dir / checkpoint_listing.DIRECTORY) is None
    if had_saved or is_removed:
        raise InputError(
            f"config.run_dir = {config.run_dir!r} has records to step {rows[-1].step:,}, but its "
            "checkpoints are gone: put them back, choose another run_dir, or --fall-back to start "
            "again"
        )


def check_shared(run_dir: Path) -> None:
    """Raises an InputError unless every process sees the lock of the primary one in `run_dir`."""

    def read_lock() -> int:
        return zlib.crc32(run_directory.lock_holder(run_dir).encode("utf-8")) >> 1

    expected = processes.broadcast(read_lock() if processes.is_primary() else 0)
    with processes.fail_together():
        if not processes.wait_until_visible(lambda: read_lock() == expected):
            raise InputError(
                f"config.run_dir = {str(run_dir)!r} is not the same place on every host (process "
                f"{jax.process_index()} does not see what process 0 wrote there): give a directory "
                "on storage that all of them share"
            )


def find_stop(config: Config, datasets: Mapping[str, DatasetInfo], step: int) -> tuple[float, str]:
    """Returns the update to stop at, `math.inf` for never, and the reason: "stop" or "data".

    `step` counts the updates done. Raises an InputError if the data end before the configured stop.
    """
    clock, stop = config.clock, config.stop_rule.after(step, config.clock)
    if config.data.repeat:
        return math.inf if stop is None else stop, "stop"
    exhausted = None if stop is None else find_exhausted(config, datasets, stop)
    if stop is not None and exhausted is None:
        return stop, "stop"

    def is_beyond(step: int) -> bool:
        return find_exhausted(config, datasets, step) is not None

    end = stop or next(2**i for i in itertools.count() if is_beyond(2**i))
    last = bisect.bisect_left(range(end), True, key=is_beyond) - 1
    if stop is None:
        return max(last, step), "data"
    assert exhausted is not None
    source, length, needed = exhausted
    dataset = datasets[source]
    available = dataset.splits["train"].windows(length)
    raise InputError(
        f"config.stop = {config.stop!r} needs {needed:,} windows of {length:,} tokens; the dataset "
        f"at {dataset.path} has {available:,}, enough for {clock.describe(last)}: prepare more "
        "text, stop earlier, or repeat it with --config.data.repeat=True"
    )


def find_exhausted(
    config: Config, datasets: Mapping[str, DatasetInfo], step: int
) -> tuple[str, int, int] | None:
    """Returns the first source that has too few windows for `step` updates, or None.

    With it come the length of the windows and how many are needed.
    """
    for stage, counts in config.windows_read(step):
        length = stage.model.length
        for source, count in counts.items():
            if count > datasets[source].splits["train"].windows(length):
                return source, length, count
    return None
