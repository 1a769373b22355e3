"""The commands of docs/tutorials/continued.md, on a small Llama that a local hub serves.

The export is read back, by transformers too.
"""

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from pydoc_data.topics import topics

import doc_blocks
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import safetensors.numpy
from hub_server import local_hub
from paths import REPOSITORY
from run_command import run_command
from small_llama import read_export, write_llama
from small_run import same_bits

from anytime_jax import api
from anytime_jax.commands import dispatch
from anytime_jax.formats.model_reader import PARITY
from anytime_jax.models import decoder

pytestmark = pytest.mark.slow

PAGE = REPOSITORY / "docs" / "tutorials" / "continued.md"
BLOCKS = [x for x in doc_blocks.read_blocks(PAGE) if x.mark == "run by"]
(PROGRAM,) = (x.code for x in BLOCKS if x.language == "python")
FETCH, PREPARE, TRAIN, DECAY, EVALUATE, EXPORT, GENERATE = (
    shlex.split(line)
    for block in BLOCKS
    if block.language == "bash"
    for line in block.code.replace("\\\n", " ").splitlines()
)


TEMPLATE = b"{{ messages }}\r\n"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A working directory with the model and the text, fetched from a hub."""
    hub, place = tmp_path_factory.mktemp("hub"), tmp_path_factory.mktemp("continued")
    write_llama(hub)
    (hub / "chat_template.jinja").write_bytes(TEMPLATE)
    file = hub / "sample" / "10BT" / "000_00000.parquet"
    file.parent.mkdir(parents=True)
    rows = [{"text": text, "length": len(text)} for text in topics.values()]
    pyarrow.parquet.write_table(pyarrow.table({"document": rows}), file, row_group_size=20)
    with local_hub(hub) as server, pytest.MonkeyPatch.context() as patch:
        fetch = [sys.executable, "-m", "huggingface_hub.cli.hf", *FETCH[1:]]
        environment = {**os.environ, "HF_ENDPOINT": server.url}
        subprocess.run(fetch, cwd=place, env=environment, check=True, capture_output=True)
        patch.chdir(place)
        with (place / "prepared").open("w") as output, contextlib.redirect_stdout(output):
            run([*PREPARE, "--text-field=document.text"])
    return place


@pytest.fixture(scope="module")
def trained(prepared, starts):
    """The working directory after the training and its decay."""
    for line in (TRAIN, DECAY):
        start = starts.launch(*line[2:], folder=prepared)
        assert start.wait() == 0, start.output
    return prepared


def run(line):
    """Runs a line of the page in this process."""
    _, name, *words = line
    assert run_command(dispatch.import_command(name), words) == 0


@pytest.fixture
def place(trained, monkeypatch):
    monkeypatch.chdir(trained)
    return trained


def test_preparation_names_the_command_that_continues_the_model(prepared):
    last = shlex.split((prepared / "prepared").read_text().splitlines()[-1])
    assert last == [*TRAIN[:3], TRAIN[4]]


@pytest.fixture
def exported(place, capsys):
    """The export, and the text that the page generates."""
    if not (place / "small-f25").exists():
        run(EXPORT)
    capsys.readouterr()
    run(GENERATE)
    return place / "small-f25", capsys.readouterr().out


def test_decay_and_evaluation_of_the_page(place):
    assert api.open_run("runs/small_decay_2x").config.branch_step == 36
    run(EVALUATE)


def test_export_is_read_back(exported):
    """The average bit for bit, and the logits of the parity record."""
    folder, _ = exported
    model, params = read_export(folder)
    assert same_bits(params, api.load("runs/small", "f25"))
    record = safetensors.numpy.load_file(folder / PARITY)
    logits = decoder.apply(model, params, record["tokens"][None])[0]
    np.testing.assert_allclose(logits, record["logits"], atol=1e-4)


def test_export_of_the_branch_has_all_files_of_the_tokenizer(place):
    shutil.rmtree("SmolLM2-135M")
    run([*EXPORT[:2], "--run=runs/small_decay_2x", "--output=decayed"])
    assert Path("decayed/chat_template.jinja").read_bytes() == TEMPLATE


@pytest.mark.oracle
def test_transformers_generates_the_text_of_the_page(exported):
    python = os.environ.get("ANYTIME_JAX_OLMO2_PYTHON")
    if not python:
        pytest.skip("ANYTIME_JAX_OLMO2_PYTHON is not set (tests/oracles/README.md)")
    folder, text = exported
    run([*EXPORT, "--overwrite", "--verify", f"--verify-python={python}"])
    done = subprocess.run(
        [python, "-c", PROGRAM], cwd=folder.parent, text=True, capture_output=True, check=True
    )
    assert done.stdout.removeprefix("<|begin|>").strip() == text.strip()
