"""Checks of a run that need neither its data nor a compilation."""

import inspect
import itertools
import json
import math
import re
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from anytime_jax import __version__, optimizers
from anytime_jax.averaging import LIVE, is_label
from anytime_jax.checkpoints import checkpoint_listing, metric_records, run_json, run_ownership
from anytime_jax.checkpoints.retention import checkpoint_bytes
from anytime_jax.checkpoints.tree_names import flatten_by_name
from anytime_jax.checks import require
from anytime_jax.config.model import ModelConfig
from anytime_jax.config.run_config import Config
from anytime_jax.config.settings_reader import flatten
from anytime_jax.distributed import processes, sharding
from anytime_jax.errors import InputError, format_value, within
from anytime_jax.formatting import format_bytes, format_differences
from anytime_jax.models import attention
from anytime_jax.storage.failures import check_directory
from anytime_jax.storage.files import free_bytes, is_directory
from anytime_jax.storage.paths import absolute_path, storage_path
from anytime_jax.training import due_steps
from anytime_jax.training.state_memory import measure_state, state_bytes
from anytime_jax.training.step import Program

_PACKED_GENERATION = 9  # of GPUs whose cuDNN attention takes packed documents
_STORED_BYTES = (2, 4)  # of a number, as `array_checksums` sums them
_SUM_TOLERANCE = 1e-3  # of coefficients in float32


def check_thread() -> None:
    """Raises an InputError unless this is the main thread.

    Python handles signals in the main thread alone. When the main thread ends, Python stops the
    threads that save.
    """
    thread = threading.current_thread()
    if thread is not threading.main_thread():
        raise InputError(
            f"training was called in the thread {thread.name!r}: a run trains in the main thread "
            "alone, which Ctrl-C and the end of the program let save; call it there, or start "
            "another process"
        )


def check_start(config: Config, mesh: Mesh | None = None, fall_back: bool = False) -> Mesh:
    """Returns the mesh of a start, by default over all devices; reads no data and writes nothing.

    Raises an InputError if the thread, the directories, the devices or the processes do not fit.
    """
    check_thread()
    with processes.fail_together():
        check_paths(config)
        mesh = mesh or sharding.make_mesh(config.mesh)
        check_mesh(config, mesh)
    check_agreement(config, fall_back)
    return mesh


def check_paths(config: Config) -> None:
    """Raises an InputError if the run directory cannot be one."""
    with within("config.run_dir"):
        run_dir = storage_path(config.directory)
    run_ownership.check_name(absolute_path(run_dir), "config.run_dir", config.directory)
    check_directory(run_dir, f"config.run_dir = {format_value(config.directory)}")
    run_ownership.check_files(run_dir, [checkpoint_listing.DIRECTORY, metric_records.DIRECTORY])


def check_agreement(config: Config, fall_back: bool) -> None:
    """Raises an InputError in every process if a process has other settings than process 0."""
    flat = flatten(config.to_dict())
    versions = {"anytime_jax": __version__, "jax": jax.__version__}
    text = json.dumps({**flat, "--fall-back": fall_back, **versions}, default=str)
    own, first = json.loads(text), json.loads(processes.broadcast_text(text))
    with processes.fail_together():
        if differences := format_differences(first, own):
            raise InputError(
                f"process {jax.process_index()} has other settings than process 0 ({differences}): "
                "start all processes of a run with the same"
            )


def check_mesh(config: Config, mesh: Mesh) -> None:
    """Raises an InputError if a mesh would split a head, or if its devices cannot run a model."""
    tensor = mesh.shape["tensor"]
    for name, heads in (("heads", config.model.heads), ("kv_heads", config.model.key_heads)):
        if heads % tensor:
            raise InputError(
                f"it is not divisible by config.mesh.tensor = {tensor}: choose a mesh that keeps "
                "heads whole",
                f"config.model.{name}",
                heads,
            )
    for model in config.models:
        _check_attention(config, model, mesh)
    if isinstance(config.microbatches, int):
        check_batch(config, mesh, config.microbatches)


def check_batch(config: Config, mesh: Mesh, microbatches: int) -> None:
    """Raises an InputError if the devices cannot share a microbatch, or a batch in evaluations."""
    shards, part = sharding.batch_shards(mesh), config.batch_size // microbatches
    allowed = f"a multiple of the {shards} parts into which a mesh of {mesh.size} devices splits a "
    allowed += "batch (mesh.data x mesh.fsdp), or choose a mesh with fewer parts"
    require(part % shards == 0, "config.batch_size / microbatches", part, allowed)
    size = config.eval.batch_size
    require(size % shards == 0, "config.eval.batch_size", size, allowed)
    for stage in config.run_stages[1:]:
        length = stage.model.length
        windows = part * config.model.length // length
        if windows % shards:
            raise InputError(
                f"from {config.clock.describe(stage.step)} a microbatch has {windows} windows of "
                f"{length} tokens, which is not divisible by the {shards} parts into which a mesh "
                f"of {mesh.size} devices splits a batch: choose fewer microbatches, a larger "
                "batch_size, or a mesh with fewer parts",
                "config.stages",
            )


def _check_attention(config: Config, model: ModelConfig, mesh: Mesh) -> None:
    """Raises an InputError if an implementation of attention does not fit the devices or length."""
    device = mesh.devices.flat[0]
    implementation = attention.choose_implementation(model, device, model.length)
    if (
        config.data.documents == "mask"
        and implementation == "cudnn"
        and attention.generation(device) < _PACKED_GENERATION
    ):
        raise InputError(
            f"cuDNN's packed layout needs a Hopper GPU or a later one, and this "
            f"{device.device_kind} has compute capability {device.compute_capability}: set "
            "--config.model.attention=xla, whose mask takes memory of the length squared",
            "config.data.documents",
            config.data.documents,
        )
    if need := attention.unmet_need(model.attention, model, device, model.length):
        raise InputError(
            f"it needs {need}, which this run on a {device.platform} does not have: try 'auto'",
            "config.model.attention",
            model.attention,
        )


def check_update(program: Program) -> None:
    """Traces the update of a run that has classes of other packages, so that their errors show.

    Raises an InputError if the update changes the form of the state, if a checkpoint cannot store
    the state, or if a read-out has the name of other weights.
    """
    if not program.config.packages():
        return
    states = program.abstract_state, program.trace_update().out_info[0]
    before, after = (
        {name: f"{x.dtype}{list(x.shape)}" for name, x in flatten_by_name(state).items()}
        for state in states
    )
    if differences := format_differences(before, after):
        raise InputError(
            f"an update changes the form of the state ({differences}): return updates and state "
            "with the same shapes and types",
            "config.optimizer",
        )
    for path, x in jax.tree_util.tree_leaves_with_path(states[0]):
        is_number = jnp.issubdtype(x.dtype, jnp.number) and x.dtype.itemsize in _STORED_BYTES
        if not (is_number and x.size) or any("/" in str(getattr(y, "key", "")) for y in path):
            raise InputError(
                f"{jax.tree_util.keystr(path)} of the state is {x.dtype}{list(x.shape)}, and "
                "checkpoints store arrays with elements of 2 or 4 bytes, whose names have no /",
                "config.model or config.optimizer",
            )
    _check_readouts(program)


def _check_readouts(program: Program) -> None:
    """Raises an InputError for a read-out with the name of other weights, or not of sum 1."""
    opt_state = program.abstract_state.opt_state
    iterates = jax.eval_shape(optimizers.iterates, opt_state)
    for name in (*iterates, *jax.eval_shape(optimizers.readouts, opt_state)):
        if not re.fullmatch(r"[A-Za-z]\w*", name) or name == LIVE or is_label(name):
            raise InputError(
                f"{name!r} is no name for an iterate or a read-out: give a word that is neither "
                f"{LIVE!r} nor a label of an average such as 'f25'",
                "config.optimizer",
            )
    # Within another program, `init` may not be compiled with options of its own.
    init = inspect.unwrap(program.init)
    first = jax.jit(lambda: optimizers.readouts(init().opt_state))()
    for name, terms in jax.device_get(first).items():
        total = sum(map(float, terms.values()))
        if not terms.keys() <= {LIVE, *iterates} or abs(total - 1) > _SUM_TOLERANCE:
            raise InputError(
                f"the read-out {name!r} is a sum of {', '.join(terms)} with coefficients that sum "
                f"to {total:.6g}: it must be of {', '.join((LIVE, *iterates))}, and sum to 1",
                "config.optimizer",
            )


def check_capacity(program: Program, run_dir: Path) -> None:
    """Raises an InputError if state and gradient exceed memory, or a checkpoint the free disk.

    Activations are not counted. The compiler knows their memory, and `Run.update` warns of it.
    """
    config, state = program.config, program.abstract_state
    available = sharding.device_memory(program.mesh)
    memory = measure_state(state, config.accumulation, program.microbatches)
    if available is not None and memory.least > available:
        raise InputError(
            f"{memory.describe(available)}, and activations come on top: choose a larger "
            "mesh.fsdp, fewer averages or a smaller model",
            "config.model",
        )
    free = free_bytes(run_dir)
    needed = checkpoint_bytes(state_bytes(state))
    if needed > free:
        raise InputError(
            f"a checkpoint takes {format_bytes(needed)} and the disk has {format_bytes(free)} "
            "free: free some, choose a directory on another disk, or a smaller config.model",
            "config.run_dir",
            config.directory,
        )


def check_not_lost(config: Config, run_dir: Path, step: int) -> None:
    """Raises an InputError if a run's checkpoints are lost: records show that it had saved later.

    The run has no checkpoint, and `step` is where it would start.
    """
    rows = metric_records.read_records(run_dir)
    if not rows:
        return
    saving = due_steps.save_event(config, math.inf)
    saves = (x for x in range(step + 1, rows[-1].step) if saving.due(x))
    # A second save waits for the first one, which a kill can leave half-written.
    had_saved = next(itertools.islice(saves, 1, None), None) is not None
    is_removed = not is_directory(run_dir / checkpoint_listing.DIRECTORY)
    if had_saved or is_removed:
        raise InputError(
            f"it has records to step {rows[-1].step:,}, but its checkpoints are gone: put them "
            "back, choose another run_dir, or --fall-back to start again",
            "config.run_dir",
            config.directory,
        )


def check_shared(run_dir: Path, start_id: str) -> None:
    """Raises an InputError unless all processes see the primary process's start in `run_dir`."""
    with processes.fail_together():
        if not processes.wait_until_visible(lambda: run_json.start_id(run_dir) == start_id):
            raise InputError(
                f"it is not the same place on every host (process {jax.process_index()} does not "
                "see what process 0 wrote there): give a directory on storage that all of them "
                "share",
                "config.run_dir",
                str(run_dir),
            )
