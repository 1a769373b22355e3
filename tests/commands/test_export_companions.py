"""Files that came in with a model or a tokenizer go out with an export, byte for byte."""

import json
import shutil
from pydoc_data.topics import topics

import pytest
import small_run
from byte_level_tokenizer import write_byte_level
from run_command import run_command
from small_llama import write_llama

from anytime_jax.commands import export, prepare
from anytime_jax.config import run_config
from anytime_jax.config.kinds import NOBODY
from anytime_jax.corpus import companion_files
from anytime_jax.corpus.vocabulary_files import load_vocabulary
from anytime_jax.data.dataset_info import load_dataset
from anytime_jax.training import loop
from configs import continued

# Of a tokenizer, some of them not UTF-8.
TOKENIZER = {
    "chat_template.jinja": b"{% for m in messages %}\r\n{{ m }}{% endfor %}\n\n",
    "additional_chat_templates/tool_use.jinja": b"{{ tools }}",
    "special_tokens_map.json": b'{"eos_token":  "<|endoftext|>"}',
    "added_tokens.json": b'{"   ": 600}',
    "vocab.json": b"{}",
    "merges.txt": b"#version: 0.2\n",
    "tokenizer.model": b"\x00\xff\n",
    "tekken.v3": b"\xfe",
    "LICENSE": b"all rights \xa9",
}
GENERATION = b'{"eos_token_id": [1, 0],"temperature":0.6, "do_sample": true}'
OTHERS = {  # of the weights, or about another model
    "README.md": b"a card",
    "modeling_llama.py": b"raise SystemExit",
    "pytorch_model.bin": b"x",
    "pytorch_model.bin.index.json": b"{}",
    ".gitattributes": b"*",
    "original/params.json": b"{}",
}


def write_files(folder, files):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A run of one update from a model, and its dataset; the model's directory is gone since."""
    place = tmp_path_factory.mktemp("companions")
    write_llama(place / "model")
    settings = json.loads((place / "model" / "config.json").read_text())
    settings |= {"eos_token_id": [1, 0], "pad_token_id": 0}
    write_files(place / "model", {"config.json": json.dumps(settings).encode()})
    (place / "plain").mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(place / "model" / name, place / "plain")
    write_files(place / "model", {**TOKENIZER, **OTHERS, "generation_config.json": GENERATION})
    write_files(place / "plain", {"special_tokens_map.json": TOKENIZER["special_tokens_map.json"]})
    for number, text in enumerate(topics.values()):
        write_files(place / "texts", {f"{number}.txt": text.encode()})
    for vocabulary, output in (("model", "data"), ("plain", "plain_data")):
        words = [f"--input={place / 'texts'}", f"--vocabulary={place / vocabulary}"]
        assert run_command(prepare, [*words, f"--output={place / output}"]) == 0
    settings = continued.get_config(str(place / "model")).to_dict()
    settings["model"] |= {"length": 16, "dtype": "float32", "attention": "plain"}
    settings |= {"run_dir": str(place / "run"), "batch_size": 4, "microbatches": 1, "log": {}}
    settings |= {"averages": (), "stop": "1 steps"}
    settings["data"]["path"] = str(place / "plain_data")
    settings["eval"]["tokens"] = 64
    settings["schedule"]["warmup"] = "1 steps"
    loop.train(run_config.build(settings, trust=NOBODY), mesh=small_run.mesh())
    shutil.rmtree(place / "model")
    return place


def read(folder):
    files = (x for x in folder.rglob("*") if x.is_file())
    return {x.relative_to(folder).as_posix(): x.read_bytes() for x in files}


def run_export(place, output, *options):
    words = [f"--run={place / 'run'}", "--weights=last", f"--output={output}", *options]
    assert run_command(export, words) == 0
    return read(output)


def test_files_of_a_model_go_out_as_they_came(place, tmp_path):
    """Though the run's dataset was made with three of them, and the model is gone."""
    files = run_export(place, tmp_path / "out")
    assert files.items() >= {**TOKENIZER, "generation_config.json": GENERATION}.items()
    tokenizer = read(place / "plain")
    assert files.items() >= tokenizer.items()
    assert not files.keys() & OTHERS.keys()
    settings = json.loads(files["config.json"])
    assert (settings["bos_token_id"], settings["eos_token_id"]) == (2, [1, 0])
    assert settings["pad_token_id"] == 0
    assert run_export(place, tmp_path / "out", "--overwrite").keys() == files.keys()
    write_files(tmp_path / "out", {"additional_chat_templates/mine.jinja": b""})
    words = [f"--run={place / 'run'}", f"--output={tmp_path / 'out'}", "--overwrite"]
    assert run_command(export, words) == 2  # a file in a folder is not lost either


def test_files_of_a_tokenizer_stay_with_its_dataset(place):
    """And do not change the vocabulary."""
    data, plain = (load_dataset(place / name) for name in ("data", "plain_data"))
    assert data.fingerprint == plain.fingerprint
    kept = companion_files.of_vocabulary(data.path)
    assert kept == {**TOKENIZER, **read(place / "plain")}
    vocabulary = load_vocabulary(data.vocabulary_path)
    assert companion_files.choose({}, kept, vocabulary) == kept


def test_files_of_another_tokenizer_do_not_go_out(place, tmp_path):
    other = write_byte_level(tmp_path, ["another text"], 300)
    files = {
        **TOKENIZER,
        "tokenizer.json": other.read_bytes(),
        "generation_config.json": GENERATION,
    }
    vocabulary = load_vocabulary(place / "data" / "vocabulary.model")
    chosen = companion_files.choose(files, {}, vocabulary)
    assert chosen == {"generation_config.json": GENERATION}
