"""Tests of generated text, against the decoder."""

import functools
import json
import shutil

import jax
import numpy as np

from anytime_jax import api
from anytime_jax.commands import generate
from anytime_jax.corpus import companion_files
from anytime_jax.corpus.vocabulary_files import load_vocabulary
from anytime_jax.models import decoder
from anytime_jax.weights import saved_run
from anytime_jax.weights.post_hoc_averages import WeightedSum


def test_greedy_text_follows_the_decoder(trained, command):
    words = [f"--run={trained}", "--prompt=the ", "--tokens=3", "--temperature=0"]
    status, out, err = command(generate, *words)
    assert (status, out[:4]) == (0, "the ")
    assert err.startswith("f25@40 of ")
    saved = saved_run.open_saved_run(trained)
    vocabulary = load_vocabulary(f"{saved.config.data.path}/vocabulary.model")
    params = saved_run.load_weights(saved, WeightedSum((saved.weights["f25"],)))
    ids = vocabulary.encode(["the "])[0].tolist()
    count = len(ids)
    config = saved.config.model
    apply = jax.jit(functools.partial(decoder.apply, config))
    while len(ids) < min(count + 3, config.length):
        logits = apply(params, np.pad(ids, (0, config.length - len(ids)))[None])
        ids.append(int(logits[0, len(ids) - 1, : vocabulary.size].argmax()))
        if ids[-1] == vocabulary.eos_id:
            break
    assert out.startswith(vocabulary.decode(ids).rstrip("\ufffd"))
    assert command(generate, *words)[1] == out


def test_text_ends_before_an_end_of_the_model_too(trained, tmp_path):
    """A model that a run began with may name several, in a file that the run has kept."""
    run = shutil.copytree(trained, tmp_path / "run")
    sampling = {"weights": "last", "tokens": 12, "temperature": 1.0, "seed": 3}
    text = api.generate(run, "the ", **sampling)
    vocabulary = saved_run.find_vocabulary(saved_run.open_saved_run(run))[1]
    ids = vocabulary.encode([text])[0].tolist()
    ends = [ids[-1], vocabulary.eos_id]
    companion_files.save(
        {"generation_config.json": json.dumps({"eos_token_id": ends}).encode()}, run
    )
    shorter = api.generate(run, "the ", **sampling)
    assert len(shorter) < len(text)
    assert text.startswith(shorter)
