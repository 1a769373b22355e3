"""Tests of tasks of lm-evaluation-harness, by hand and against its own model of an export."""

import itertools
import json
import math
import os
import shutil
import subprocess
import types

import jax
import numpy as np
import pytest
import small_run
from byte_level_tokenizer import write_byte_level
from local_tasks import make_documents, write_tasks
from paths import REPOSITORY
from training_runs import start

from anytime_jax.checkpoints import run_ownership, tree_names
from anytime_jax.checkpoints.metric_records import read_records
from anytime_jax.commands import evaluate, export, generate, runs
from anytime_jax.corpus.file_source import FileSource
from anytime_jax.corpus.preparation import prepare
from anytime_jax.data.dataset_info import load_dataset
from anytime_jax.errors import InputError
from anytime_jax.formatting import format_score
from anytime_jax.models import decoder
from anytime_jax.weights import saved_run, weight_names

pytest.importorskip("lm_eval", reason="needs the extra `tasks`")
from anytime_jax.commands import task_scores
from anytime_jax.training import plan, task_evaluation, text_scorer
from anytime_jax.weights.checkpoint_scorer import CheckpointScorer

# The libraries that lm_eval loads warn of each other.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

LENGTH = 48


def train_run(folder, vocabulary, bos=None):
    """A run of the OLMo-2 shape on random words."""
    (folder / "text").mkdir(parents=True)
    for number, document in enumerate(make_documents(120)):
        text = f"{document['text']} {' '.join(document['choices'])}"
        (folder / "text" / f"{number}.txt").write_text(text)
    source = FileSource(str(folder / "text"), validation_fraction=0.1)
    words = small_run.VOCABULARY
    if vocabulary == "byte-level":
        texts = [file.read_text() for file in (folder / "text").iterdir()]
        words = write_byte_level(
            folder / "hub",
            texts,
            bos_token="<|begin|>",
            pad_token="<|padding|>",
            tokenizer_class="PreTrainedTokenizerFast",
        )
    dataset = prepare(source, folder / "data", vocabulary=words, bos=bos, workers=1)
    train(folder / "run", dataset)
    return folder / "run"


def train(run, dataset, interrupted=lambda: False, **changes):
    """Trains a run of six updates, from its last checkpoint on."""
    return start(
        run,
        dataset,
        interrupted,
        model__kind="olmo2",
        model__length=LENGTH,
        model__vocab_size=dataset.vocab_size,
        model__embedding_rows=dataset.vocab_size,
        data__repeat=True,
        log__trackers={"tensorboard": {}},
        checkpoint__keep_every="2 steps",
        stop="6 steps",
        **changes,
    )


@pytest.fixture(scope="module", name="run")
def run_fixture(tmp_path_factory):
    return train_run(tmp_path_factory.mktemp("scored"), "sentencepiece")


@pytest.fixture(autouse=True)
def _large_weights(monkeypatch):
    """Weights of 0.3, with which what is generated depends on the prompt; others at each step."""

    def read_layers(run, weighted_sum):
        del weighted_sum
        key = jax.random.key(6 - run.step)
        params = jax.device_get(decoder.init_params(run.config.model, key))
        large = jax.tree.map(lambda x: x if (x == 1).all() else 15 * x, params)
        large["head"][:, 3:259] *= 0.1  # single bytes, which seldom make a text
        named = tree_names.flatten_by_name(large)
        return {x: iter(y if tree_names.is_stacked(x) else [y]) for x, y in named.items()}

    monkeypatch.setattr(saved_run, "read_layers", read_layers)


@pytest.fixture(name="tasks")
def tasks_fixture(tmp_path):
    return write_tasks(tmp_path / "tasks")


def open_model(run, vocabulary=None, like_hf=False):
    saved = saved_run.open_saved_run(run)
    _, vocabulary = saved_run.find_vocabulary(saved, vocabulary)
    scorer = text_scorer.open_scorer(saved.config, saved.model, small_run.mesh(), 8)
    weighted_sum = weight_names.parse(saved, "f25")
    params = saved_run.load_weights(saved, weighted_sum, scorer.mesh)
    model = task_evaluation.RunModel(scorer, params, vocabulary, saved.delimiters, like_hf)
    return model, vocabulary, saved


def printed_scores(out):
    """The printed scores by task and metric."""
    rows = [line.split() for line in out.splitlines() if line.startswith(" own_")]
    return {(row[0], row[2]): row[3:] for row in rows}


def test_scores_are_those_of_a_loop_over_the_documents(run, tasks, command):
    status, out, err = command(
        evaluate, f"--run={run}", "--weights", "f25", f"--tasks={tasks['choose']},{tasks['read']}"
    )
    assert status == 0, err
    _, vocabulary, saved = open_model(run)
    params = jax.device_put(saved_run.load_weights(saved, weight_names.parse(saved, "f25")))
    apply = jax.jit(lambda ids: jax.nn.log_softmax(decoder.apply(saved.config.model, params, ids)))

    def likelihood(context, ids):
        text = [*context, *ids][-(LENGTH + 1) :]
        padded = np.pad(text, (0, LENGTH + 1 - len(text)))[None]
        log_p = np.asarray(apply(padded[:, :-1])[0], np.float64)
        end = len(text) - 1
        return log_p[np.arange(end - len(ids), end), ids].sum()

    def encode(text):
        return vocabulary.encode([text])[0].tolist()

    right, nats, size = [], 0.0, 0
    for document in make_documents():
        sums = []
        for choice in document["choices"]:
            question = document["question"].rstrip()
            whole = encode(document["question"] + choice)
            context = encode(question) if question else []
            ids = whole[len(context) :]
            sums.append(likelihood(context or [vocabulary.eos_id], ids))
        right.append(int(np.argmax(sums)) == document["answer"])
        ids = encode(document["text"])
        first, rest = ids[:LENGTH], ids[LENGTH:]
        nats -= likelihood([vocabulary.eos_id], first)
        while rest:
            part, rest = rest[:LENGTH], rest[LENGTH:]
            end = len(ids) - len(rest)
            nats -= likelihood(ids[: end - len(part)], part)
        size += len(document["text"].encode())
    printed = printed_scores(out)
    assert 0 < np.mean(right) < 1
    assert printed["own_choose", "acc"][0] == f"{np.mean(right):.4f}"
    assert printed["own_read", "bits_per_byte"] == [f"{nats / math.log(2) / size:.4f}"]


def test_text_is_generated_up_to_an_end(run):
    model, *_ = open_model(run)
    prompts = [document["question"] for document in make_documents(10)]

    def generate(*until):
        settings = {"until": [*until], "max_gen_toks": 20}
        return model.generate_until([types.SimpleNamespace(args=(x, settings)) for x in prompts])

    whole = generate()
    end = whole[0][5:7]
    assert len(end) == 2
    assert generate("never", end) == [text.split(end)[0] for text in whole]
    assert len(set(whole)) > 3


def test_scores_join_the_records_at_the_step_of_the_weights(run, tasks, command):
    words = (f"--run={run}", f"--tasks={tasks['choose']}", "--weights", "last")
    assert command(evaluate, *words, "--step=2")[0] == 0
    before = read_records(run)
    status, out, _ = command(evaluate, *words)
    assert status == 0
    rows = {row.step: row for row in read_records(run)}
    assert [*rows] == [row.step for row in before]  # no row is lost
    names = {f"tasks/last/own_choose/{x}" for x in ("acc", "acc_norm", "brier_score")}
    assert names <= rows[2].values.keys() & rows[6].values.keys()
    assert "train/loss" in rows[6].values
    printed = printed_scores(out)["own_choose", "acc"][0]
    assert printed == f"{rows[6].values['tasks/last/own_choose/acc']:.4f}"
    assert "last/own_choose/acc" in command(runs, "--run", str(run))[1]
    files = [path.read_bytes() for path in (run / "tasks" / "tensorboard").iterdir()]
    assert any(b"tasks/last/own_choose/acc" in content for content in files)


def until(updates):
    """A function that interrupts a start after so many updates and batches of evaluations."""
    return itertools.chain([False] * updates, itertools.repeat(True)).__next__


def scores(run):
    """The scores of own_choose by step and name, and the losses of the training by step."""
    rows = {row.step: row.values for row in read_records(run)}
    wanted = ("tasks/last/own_choose/", "tasks/f=35/", "train/loss")
    return {
        (step, name): value
        for step, values in rows.items()
        for name, value in values.items()
        if name.startswith(wanted)
    }


def test_checkpoints_are_scored_while_a_run_trains(run, tasks, command, monkeypatch, tmp_path):
    watched, dataset = tmp_path / "watched", load_dataset(run.parent / "data", "")
    train(watched, dataset, until(2))
    # Between looks, the run is resumed twice. A start holds the lock at every other moment.
    resumes = iter([until(3), lambda: False])  # 3: for the evaluation at step 2, too

    def sleep(seconds):
        del seconds
        for interrupted in itertools.islice(resumes, 1):
            train(watched, dataset, interrupted)

    record = CheckpointScorer.record

    def record_locked(*arguments):
        with run_ownership.lock(watched):
            return record(*arguments)

    words = (f"--tasks={tasks['choose']}", "--weights", "last", "f=35")
    with monkeypatch.context() as patch:
        patch.setattr(task_scores, "time", types.SimpleNamespace(sleep=sleep))
        patch.setattr(CheckpointScorer, "record", record_locked)
        status, out, err = command(evaluate, f"--run={watched}", *words, "--watch")
    assert status == 0, err
    assert out.count("watched at step ") == 3
    for step in (2, 4, 6):
        assert command(evaluate, f"--run={run}", *words, f"--step={step}")[0] == 0
    assert scores(watched) == scores(run)
    assert len({x for (_, name), x in scores(run).items() if name.endswith("choose/acc")}) > 1

    # Whatever is recorded whole is not scored again; a kill tore the last line.
    file = sorted((watched / "records").iterdir(), key=lambda x: x.stat().st_mtime)[-1]
    file.write_bytes(file.read_bytes()[:-2])
    monkeypatch.setattr(task_scores, "_EVERY", 0)
    _, out, _ = command(evaluate, f"--run={watched}", *words, "--watch")
    assert (out.count("watched at step 6 "), out.count(" acc_norm ")) == (1, 1)
    assert scores(watched) == scores(run)


def test_checkpoint_that_the_run_deletes_is_passed_over(run, tasks, command, monkeypatch, tmp_path):
    shutil.copytree(run, tmp_path / "copy")
    score, gone = CheckpointScorer.score, tmp_path / "copy" / "checkpoints" / "4"

    def score_and_delete(*arguments):
        if gone.exists():
            shutil.rmtree(gone)
        return score(*arguments)

    monkeypatch.setattr(CheckpointScorer, "score", score_and_delete)
    monkeypatch.setattr(task_scores, "_EVERY", 0)
    words = (f"--tasks={tasks['read']}", "--weights=f6.25", "--watch")
    status, out, _ = command(evaluate, f"--run={tmp_path / 'copy'}", *words)
    steps = [row.step for row in read_records(tmp_path / "copy") if "own_read" in str(row.values)]
    assert (status, "note: step 4 " in out, steps) == (0, True, [2, 6])


def test_run_scores_its_weights_as_the_command_does(
    run, tasks, command, monkeypatch, tmp_path, capsys
):
    """At points and at the stop, with the weights that the checkpoints have, in spite of stops."""
    monkeypatch.undo()  # the weights of the training
    scored, dataset = tmp_path / "scored", load_dataset(run.parent / "data", "")
    # Runs of one configuration share their compiled functions.
    monkeypatch.setattr(text_scorer, "make_program", small_run.program)
    names = [str(tasks[x]) for x in ("choose", "read")]
    changes = {"eval__tasks": tuple(names), "eval__tasks_every": ("3 steps",)}
    # Five are before the scores at step 3, which have eleven batches for each of three trees.
    assert train(scored, dataset, until(10), **changes)[0].step == 3
    assert "it/s" not in capsys.readouterr().err  # nor any bar of the harness
    assert not any("tasks/" in name for x in read_records(scored) for name in x.values)
    assert train(scored, dataset, **changes)[0].reason == "stop"
    steps = [x.step for x in read_records(scored) if any("tasks/" in y for y in x.values)]
    assert steps == [3, 6]
    assert train(scored, dataset, **changes)[1] == ""  # nothing is left to do
    (before,) = [x.values for x in read_records(scored) if x.step == 6]
    words = ("--tasks", ",".join(names), "--step=6")
    assert command(evaluate, f"--run={scored}", *words)[0] == 0
    (after,) = [x.values for x in read_records(scored) if x.step == 6]
    assert after.keys() == before.keys()
    for name in after:
        assert after[name] == pytest.approx(before[name], rel=1e-6), name
    content = b"".join(x.read_bytes() for x in (scored / "tensorboard").iterdir())
    assert b"tasks/f25/own_read/bits_per_byte" in content


def test_run_with_an_unknown_task_is_refused_before_programs(run, tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "make_program", None)
    dataset = load_dataset(run.parent / "data", "")
    with pytest.raises(InputError, match=r"config\.eval\.tasks.*own_nothing"):
        train(tmp_path / "run", dataset, eval__tasks=("own_nothing",))


def test_all_weights_get_the_same_examples(run, tasks, command):
    words = (f"--run={run}", f"--tasks={tasks['choose']}", "--shots=2")
    _, out, _ = command(evaluate, *words, "--weights", "f25", 'mix:{"f25": 1}')
    rows = [line.split() for line in out.splitlines() if line.startswith(" own_")]
    assert rows[:3] == rows[3:]
    assert {row[1] for row in rows} == {"2"}
    (row,) = [row for row in read_records(run) if row.step == 6]
    assert "tasks/f25/own_choose-2shot/acc" in row.values


@pytest.mark.parametrize(
    ("kind", "line", "named"),
    [
        ("write", "  max_gen_toks: 48", ("own_write", "max_gen_toks = 48")),
        ("choose", "unsafe_code: true", ("own_choose", "code")),
        ("choose", "  - metric: exact\n    aggregation: mean", ("own_choose", "exact")),
        ("choose", 'doc_to_text: "{{missing.part}}"', ("choose.yaml", "missing")),
    ],
)
def test_impossible_task_is_one_line(run, tasks, command, monkeypatch, kind, line, named):
    monkeypatch.setattr(saved_run, "load_weights", None)  # comes later
    name = line.split(":")[0]
    kept = [x for x in tasks[kind].read_text().splitlines() if not x.startswith(f"{name}:")]
    section = "metric_list:" if "metric" in name else "generation_kwargs:"
    at = kept.index(section) + 1 if name.startswith(" ") else len(kept)
    tasks[kind].write_text("\n".join([*kept[:at], line, *kept[at:]]))
    status, out, err = command(evaluate, f"--run={run}", f"--tasks={tasks[kind]}")
    lines = [x for x in err.splitlines() if x.startswith("error: ")]
    assert (status, out, len(lines)) == (2, "", 1), err
    assert all(x in lines[0] for x in named)


def test_continuation_longer_than_the_model_is_refused(run):
    model, *_ = open_model(run)
    request = types.SimpleNamespace(args=("a", " word" * LENGTH))
    with pytest.raises(InputError, match="continuation"):
        model.loglikelihood([request])


@pytest.mark.parametrize(("bos", "begin"), [("document", [2]), ("none", [])])
def test_texts_begin_as_the_documents_of_the_data_did(tmp_path, command, bos, begin):
    """Whatever the tokenizer does, and where the data are gone."""
    run = train_run(tmp_path, "byte-level", bos)
    words = (tmp_path / "data" / "vocabulary.model").rename(tmp_path / "vocabulary.model")
    shutil.rmtree(tmp_path / "data")
    model, vocabulary, saved = open_model(run, words)
    (ids,) = vocabulary.encode(["a bcd efg"])
    assert vocabulary.encode_by_itself("a bcd efg") == [2, *ids]
    assert model.tok_encode("a bcd efg") == [*begin, *ids]
    params = jax.device_put(saved_run.load_weights(saved, None))

    def log_p(text):
        padded = np.pad(text, (0, LENGTH - len(text)))[None]
        logits = decoder.apply(saved.config.model, params, padded)[0, : len(text)]
        return np.asarray(jax.nn.log_softmax(logits), np.float64)

    text = [*(begin or [vocabulary.eos_id]), *ids]
    expected = log_p(text[:-1])[np.arange(len(ids)), ids].sum()
    request = types.SimpleNamespace(args=("a bcd efg",))
    np.testing.assert_allclose(model.loglikelihood_rolling([request]), [expected], rtol=1e-5)
    found = [begin + ids.tolist()]
    for _ in range(5):
        found.append([*found[-1], int(log_p(found[-1])[-1, : vocabulary.size].argmax())])
    options = ("--prompt=a bcd efg", "--tokens=5", "--temperature=0", f"--vocabulary={words}")
    status, out, err = command(generate, f"--run={run}", *options)
    assert status == 0, err
    assert out.rstrip("\n") == vocabulary.decode(found[-1])


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("vocabulary", "bos"), [("sentencepiece", None), ("byte-level", None), ("byte-level", "none")]
)
def test_answers_and_scores_are_those_of_the_exported_model(
    tmp_path, tasks, command, vocabulary, bos
):
    python = os.environ.get("ANYTIME_JAX_LM_EVAL_PYTHON")
    if not python:
        pytest.skip("ANYTIME_JAX_LM_EVAL_PYTHON is not set (tests/oracles/README.md)")
    run = train_run(tmp_path, vocabulary, bos)
    words = (f"--run={run}", "--weights=f25", f"--output={tmp_path / 'model'}")
    assert command(export, *words)[0] == 0
    names = ",".join(map(str, tasks.values()))
    script, answers = REPOSITORY / "tests" / "oracles" / "lm_eval_hf.py", tmp_path / "answers.json"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    subprocess.run(
        [python, str(script), str(tmp_path / "model"), names, str(answers)],
        check=True, timeout=300, env=environment,
    )  # fmt: skip
    oracle = json.loads(answers.read_text())
    model, _, saved = open_model(run)
    requests = [types.SimpleNamespace(args=(text,)) for text in oracle["rolling"]]
    by_hand = [
        x["<|begin|>" if saved.delimiters.begin else "eos"] for x in oracle["rolling"].values()
    ]
    np.testing.assert_allclose(model.loglikelihood_rolling(requests), by_hand, rtol=1e-6)
    model, *_ = open_model(run, like_hf=True)
    for kind in tasks:
        pairs = oracle["answers"][f"own_{kind}"]
        requests = [types.SimpleNamespace(args=tuple(request)) for request, _ in pairs]
        expected = [answer for _, answer in pairs]
        if kind == "write":
            assert model.generate_until(requests) == expected
            assert len(set(expected)) > 5
        elif kind == "read":
            actual = model.loglikelihood_rolling(requests)
            np.testing.assert_allclose(actual, np.ravel(expected), rtol=1e-6)
        else:
            actual = model.loglikelihood(requests)
            np.testing.assert_allclose([x for x, _ in actual], [x for x, _ in expected], rtol=1e-6)
            assert [hit for _, hit in actual] == [hit for _, hit in expected]
    words = (f"--run={run}", "--weights", "f25", f"--tasks={names}", "--like-hf")
    _, out, _ = command(evaluate, *words)
    printed = printed_scores(out)
    for task, scores in oracle["scores"].items():
        for name, score in scores.items():
            metric = name.partition(",")[0]
            at = 1 if metric.endswith("_stderr") else 0
            shown = format_score(score)
            assert printed[task, metric.removesuffix("_stderr")][at] == shown, name
