"""A run on a mixture in a bucket, killed in each stage and resumed on another number of hosts."""

import json
import signal
import time
from pydoc_data.topics import topics

import bucket_copies
import numpy as np
import pytest
from run_command import run_command
from run_processes import Processes
from training_runs import records

from anytime_jax.checkpoints.checkpoint_listing import saved_steps
from anytime_jax.commands import prepare

CONFIG = """
from configs import quickstart


def get_config():
    config = quickstart.get_config()
    config.data.builtin_megabytes = 0.0
    config.data.mixture = {{"even": ("{even}", 0.75), "odd": ("{odd}", 0.25)}}
    last = {{"even": ("{even}", 0.5), "odd": ("{odd}", 0.5)}}
    config.stages = {{"1x": {{"length": 128, "mixture": last}}}}
    config.data.repeat = True
    config.model.length = 64
    config.model.vocab_size = 512
    config.batch_size, config.microbatches = 16, 1
    config.eval.tokens, config.eval.batch_size, config.eval.every = "all", 16, "10 steps"
    config.schedule.warmup, config.chinchilla_tokens, config.stop = "5 steps", 20_480, "2x"
    config.checkpoint.every, config.log.every, config.mesh.fsdp = "5 steps", "1 steps", 4
    return config
"""


@pytest.mark.slow
def test_a_mixture_is_resumed_on_other_numbers_of_hosts(bucket_server, bucket, tmp_path):
    text = tmp_path / "text"
    documents = [*topics.values()]
    for name, part in (("all", documents), ("even", documents[::2]), ("odd", documents[1::2])):
        (text / name).mkdir(parents=True)
        lines = "".join(json.dumps({"text": x}) + "\n" for x in part)
        (text / name / "text.jsonl").write_text(lines)
    vocabulary = ("--train-vocabulary=512", f"--output={tmp_path / 'all'}")
    assert run_command(prepare, (f"--input={text / 'all'}", *vocabulary)) == 0
    for name in ("even", "odd"):
        words = (f"--vocabulary={tmp_path / 'all'}", f"--output={bucket / name}")
        assert run_command(prepare, (f"--input={text / name}", *words)) == 0
    file = tmp_path / "mixed.py"
    file.write_text(CONFIG.format(even=bucket / "even", odd=bucket / "odd"))

    def start(run, hosts):
        flags = [f"--config.run_dir={run}"]
        variables = [bucket_server.environment] * hosts
        return Processes(file, flags, hosts, devices=8 // hosts, variables=variables)

    def kill(run, hosts, after):
        killed = start(run, hosts)
        limit = time.monotonic() + 180
        while not any(step >= after for step in saved_steps(run)):
            assert time.monotonic() < limit, killed.output(0)
            time.sleep(0.02)
        for process in killed.processes:
            process.send_signal(signal.SIGKILL)
        killed.wait()
        assert saved_steps(run)[-1] < 40

    run, whole = bucket / "run", bucket / "whole"
    kill(run, hosts=2, after=5)
    kill(run, hosts=1, after=25)
    start(run, hosts=4).succeed()
    start(whole, hosts=1).succeed()
    ours, theirs = (records(bucket_copies.to_disk(x, tmp_path / x.name)) for x in (run, whole))
    assert [row[:2] for row in ours] == [row[:2] for row in theirs]
    for (*_, a), (*_, b) in zip(ours, theirs, strict=True):
        shared = [x for x in a if x in b and "loss" in x]
        assert shared
        # Sums over other numbers of hosts round differently. Another batch is off by 1e-2.
        np.testing.assert_allclose([a[x] for x in shared], [b[x] for x in shared], rtol=2e-4)
