"""Layout of a run on devices: whether its batches, heads and memories fit a mesh."""

from anytime_jax.config.schema import Config
from anytime_jax.errors import InputError


def check_layout(
    config: Config,
    devices: int,
    batch_shards: int,
    tensor: int,
    platform: str,
) -> None:
    """Raises an InputError if a configuration does not fit a device mesh.

    The mesh splits batches into `batch_shards` parts and matrix products over `tensor` devices.
    `platform` is "cpu", "gpu" or "tpu".
    """
    part = config.batch_size // config.microbatches
    sizes = {"batch_size / microbatches": part, "eval.batch_size": config.eval.batch_size}
    for name, size in sizes.items():
        if size % batch_shards:
            raise InputError(
                f"config.{name} = {size} is not divisible by the {batch_shards} parts into which a "
                f"mesh of {devices} devices splits a batch (mesh.data x mesh.fsdp): choose a "
                f"multiple of {batch_shards}, or a mesh with fewer parts"
            )
    if config.model.heads % tensor:
        raise InputError(
            f"config.model.heads = {config.model.heads} is not divisible by config.mesh.tensor = "
            f"{tensor}: choose a mesh that keeps heads whole"
        )
    needs = {"cudnn": "gpu", "splash": "tpu"}.get(config.model.attention, platform)
    if needs != platform:
        raise InputError(
            f"config.model.attention = {config.model.attention!r} needs a {needs.upper()}, not a "
            f"{platform}: try 'auto'"
        )
