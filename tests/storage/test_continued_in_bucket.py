"""A public model continued by two processes, with the data and the runs in a bucket."""

import json
import signal
import time
from pydoc_data.topics import topics

import bucket_copies
import pytest
from run_command import run_command
from run_processes import Processes
from small_llama import read_export, write_llama
from small_run import same_bits
from training_runs import bits, records

from anytime_jax import api
from anytime_jax.checkpoints import checkpoint_listing, checkpoint_reader
from anytime_jax.checkpoints.checkpoint_listing import saved_steps
from anytime_jax.commands import export, prepare

SETTINGS = (
    *("--config.model.length=64", "--config.batch_size=8", "--config.microbatches=1"),
    *("--config.eval.tokens=all", "--config.eval.batch_size=8", "--config.eval.every=10 steps"),
    *("--config.schedule.warmup=5 steps", "--config.chinchilla_tokens=10_240", "--config.stop=2x"),
    *("--config.checkpoint.every=10 steps", "--config.log.every=1 steps", "--config.mesh.fsdp=4"),
)


@pytest.mark.slow
def test_two_processes_continue_decay_and_export_a_model(bucket_server, bucket, tmp_path):
    """Killed in the middle and resumed, to the bits of an unbroken run."""
    model, text = tmp_path / "model", tmp_path / "text.jsonl"
    write_llama(model)
    text.write_text("".join(json.dumps({"text": x}) + "\n" for x in topics.values()))
    data, run, whole, branch = (bucket / x for x in ("data", "run", "whole", "branch"))
    words = (f"--input={text}", f"--vocabulary={model}", f"--output={data}")
    assert run_command(prepare, words) == 0

    def start(run_dir, config, *settings):
        file = tmp_path / f"{config}.py"
        argument = {"continued": model, "decay": run}[config]
        file.write_text(
            f"from configs import {config}\n\n\n"
            f"def get_config():\n    return {config}.get_config({str(argument)!r})\n"
        )
        flags = [f"--config.run_dir={run_dir}", *settings]
        return Processes(file, flags, variables=[bucket_server.environment] * 2)

    def train(run_dir):
        return start(run_dir, "continued", *SETTINGS, f"--config.data.path={data}")

    killed = train(run)
    limit = time.monotonic() + 120
    while 10 not in saved_steps(run):
        assert time.monotonic() < limit, killed.output(0)
        time.sleep(0.05)
    killed.processes[0].send_signal(signal.SIGKILL)
    assert killed.wait() == [-9, 75], killed.output(1)
    assert f"weights  pretrained, from {model}" in killed.output(0)
    assert saved_steps(run)[-1] < 40
    resumed = train(run)
    resumed.succeed()
    assert "from     0 steps" not in resumed.output(0)
    train(whole).succeed()
    copies = [bucket_copies.to_disk(x, tmp_path / x.name) for x in (run, whole)]
    assert records(copies[0]) == records(copies[1])
    assert bits(copies[0], 40) == bits(copies[1], 40)

    start(branch, "decay").succeed()
    for each in (run, branch):
        checkpoint_reader.verify_checkpoint(checkpoint_listing.checkpoint_path(each, 40))
        output = tmp_path / f"{each.name}-f25"
        words = (f"--run={each}", "--weights=f25", f"--output={output}")
        assert run_command(export, words) == 0
        assert same_bits(read_export(output)[1], api.load(str(each), "f25"))
