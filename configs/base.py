"""Every setting, with the paper's 150M model and optimizer; the other files change what differs.

A configuration is Python and returns an `ml_collections.ConfigDict`. Change any setting on the
command line: `--config.batch_size=64 --config.stop="4x"`. Points in a run (`stop`, `every`,
`warmup`, `horizon`) are written as "12500 steps", "3.3B tokens" or "4x", a multiple of
`chinchilla_tokens`.

This file alone is not a run: it has no learning-rate schedule.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Returns the base configuration."""
    config = ConfigDict()
    config.name = "base"
    config.run_dir = "runs/base"  # checkpoints, records and pictures
    config.seed = 0  # of the initial parameters
    config.initial_weights = ""  # directory of an exported model to begin from; empty for random
    config.batch_size = 256  # sequences in an update
    config.microbatches = 8  # parts in which a batch is computed one after another
    config.batch_growth = ()  # where it grows, and to what: (("2x", 512), ("8x", 1024))
    config.chinchilla_tokens = 3_276_800_000  # what "1x" means
    # "4x+" goes on to the next doubling when run again; "never" has no end; "horizon" is the
    # end of a schedule that has one.
    config.stop = "32x"
    config.averages = (6.25, 12.5, 25.0, 50.0, 100.0)  # also "ema0.999", "uniform"
    config.average_every = 1  # updates from one move of the averages to the next
    config.average_memory = "device"  # where they are kept; or "host", for want of device memory

    config.model = ConfigDict()
    config.model.architecture = "olmo"  # or "olmo2"
    config.model.layers = 12
    config.model.heads = 16
    config.model.width = 1024
    config.model.mlp_width = 4096
    config.model.length = 1024  # tokens in a training sequence
    config.model.vocab_size = 32_100  # T5's
    config.model.embedding_rows = 32_128  # rows beyond the vocabulary stay in the softmax
    config.model.rope_theta = 10_000.0
    config.model.norm_epsilon = 1e-5
    config.model.dtype = "bfloat16"  # of the operands of matrix products; or "float32"
    config.model.attention = "auto"  # or "plain", "blocks", "xla", "cudnn"
    config.model.layer_loop = "scan"  # or "unroll": slower to compile, faster to run
    config.model.remat = "none"  # what the backward pass recomputes; or "products", "full"

    config.data = ConfigDict()
    config.data.path = "data/c4-t5-1024"  # written by `python -m anytime_jax prepare`
    config.data.builtin_megabytes = 0.0  # above 0: prepare the built-in corpus there if need be
    config.data.seed = 0  # of the order of the windows
    config.data.repeat = False  # the paper never repeats data

    config.branch = ConfigDict()
    config.branch.from_run = ""  # directory of a run to begin from a checkpoint of; empty for none
    config.branch.multiple = 0.0  # the branch's horizon: it leaves the trunk at 90% of it; or
    config.branch.step = 0  # the trunk's checkpoint to leave from
    config.branch.data = ""  # other data to go on with; empty for the trunk's
    config.branch.change = ()  # settings meant to differ, such as ("schedule.peak",)

    config.optimizer = ConfigDict()
    config.optimizer.b1 = 0.9
    config.optimizer.b2 = 0.98
    config.optimizer.epsilon = 1e-8
    config.optimizer.weight_decay = 0.0
    config.optimizer.clip_norm = 1.0

    config.guard = ConfigDict()
    config.guard.skip = (
        "nothing"  # stop at a NaN; or pass over "nonfinite" updates, or "spikes" too
    )
    config.guard.spike = 6.0  # standard deviations above the recent losses
    config.guard.limit = 10  # bad updates in a row that are passed over before the run stops

    config.mesh = ConfigDict()
    config.mesh.data = -1  # all remaining devices
    config.mesh.fsdp = 1
    config.mesh.tensor = 1

    config.eval = ConfigDict()
    config.eval.every = "1x"  # besides 1x, 2x, 4x, ... and the stop
    config.eval.tokens = 32_800_000  # the first of the validation split, every time
    config.eval.batch_size = 32

    config.checkpoint = ConfigDict()
    config.checkpoint.every = "1000 steps"
    config.checkpoint.keep = 2  # rolling ones; 1x, 2x, 4x, ... and 90% of each stay for ever
    config.checkpoint.keep_every = "never"  # or a point, such as "10B tokens"

    config.log = ConfigDict()
    config.log.every = "20 steps"
    config.log.tensorboard = True
    config.log.wandb_project = ""
    return config
