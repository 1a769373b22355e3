"""Kinds of random faults whose inputs are those of other projects, odd or damaged.

Each compares what a command made with a right value that a library computed, or demands that the
command refuses its input with status 2. See `fault_kinds`.
"""

import contextlib
import gzip
import itertools
import json
import pathlib
import random
import re
import signal
import time

import numpy as np
import pyarrow
import sentencepiece
import tokenizers
import wandb_stub
from fault_sandbox import Ended, Sandbox, Violation
from llama_files import LENGTH, Llama
from tensorboardX.proto import event_pb2
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from anytime_jax.checkpoints.metric_records import read_records
from anytime_jax.data.dataset_info import TRAIN, VALIDATION, load_dataset
from anytime_jax.data.token_arrays import read_part

_PREPARED = ("--validation-input=validation.jsonl", "--workers=1", "--output=prepared")


def _words(draw: random.Random, count: int) -> str:
    return " ".join("".join(draw.choices("abcdefghij", k=draw.randint(1, 6))) for _ in range(count))


def _line(document: str) -> bytes:
    return json.dumps({"text": document}).encode() + b"\n"


def _tokens(folder: pathlib.Path, split: str) -> list[int]:
    info = load_dataset(folder)
    return [int(x) for part in info.parts[split] for y in read_part(info, part) for x in y]


def _check_refused(ended: Ended, text: str) -> None:
    if ended.status != 2:
        raise Violation(f"{text}: not refused: {ended.output[-500:]} {ended.errors[-500:]}")


def _check_done(ended: Ended, text: str) -> None:
    if ended.status:
        raise Violation(f"{text}: status {ended.status}: {ended.errors[-500:]}")


def _check_documents(box: Sandbox, documents: list[list[int]], text: str) -> None:
    """Compares the tokens of the training split with those of the documents, in their order."""
    found, right = _tokens(box.folder / "prepared", TRAIN), [x for ids in documents for x in ids]
    if found != right:
        pairs = zip(found, right, strict=False)
        at = next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(found), len(right)))
        what = f"{len(found)} tokens of {len(right)}, the first other one at {at}"
        raise Violation(f"{text}: {what}: {found[at : at + 5]}, not {right[at : at + 5]}")


def _own_vocabulary(box: Sandbox) -> sentencepiece.SentencePieceProcessor:
    file = load_dataset(box.data).vocabulary_path
    return sentencepiece.SentencePieceProcessor(model_file=str(file))


def compressed(box: Sandbox) -> str:
    """Text in several frames or members, empty, skippable or padded, that may be cut off."""
    draw = box.draw
    documents = [_words(draw, 12) for _ in range(draw.randint(20, 60))]
    content, kind = b"".join(map(_line, documents)), draw.choice(("gz", "zst"))
    (box.folder / "validation.jsonl").write_bytes(content)
    cuts = sorted(draw.sample(range(len(content)), draw.randint(0, 4)))
    pieces = [content[a:b] for a, b in zip([0, *cuts], [*cuts, len(content)], strict=True)]
    words, stream = [f"{len(pieces)} pieces"], b""
    for piece in pieces:
        odd = draw.choice(("", "", "an empty one", "a skippable one"))
        if odd == "an empty one":
            stream += _compress(b"", kind)
        elif odd and kind == "zst":
            skipped = draw.randbytes(draw.randrange(9))
            magic = 0x184D2A50 + draw.randrange(16)
            stream += b"".join(x.to_bytes(4, "little") for x in (magic, len(skipped))) + skipped
        stream += _compress(piece, kind)
        words.append(odd)
    if kind == "gz" and draw.random() < 0.3:
        stream += bytes(draw.randrange(1, 600))
        words.append("zeros at the end")
    cut = draw.random() < 0.3
    if cut:
        end = len(_compress(pieces[-1], kind))
        body = stream.rstrip(b"\0") if kind == "gz" else stream
        # After the header of the last piece, and before its checksum or the end of its block.
        stream = body[: len(body) - draw.randrange(9, end - 12)]
        words.append("cut")
    (box.folder / f"text.jsonl.{kind}").write_bytes(stream)
    box.description = text = f"{kind}: {', '.join(filter(None, words))}"
    ended = box.do("prepare", f"--input=text.jsonl.{kind}", "--vocabulary=data", *_PREPARED)
    if cut:
        _check_refused(ended, text)
        return text
    _check_done(ended, text)
    own = _own_vocabulary(box)
    _check_documents(box, [[*own.encode(x), own.eos_id()] for x in documents], text)
    return text


def _compress(content: bytes, kind: str) -> bytes:
    if kind == "gz":
        return gzip.compress(content)
    return pyarrow.compress(content, codec="zstd", asbytes=True)


# JSON whose text Python's json reads, for the word that is put into it.
_GOOD = {
    "escapes": lambda x: json.dumps({"text": f"{x} é 漢 \U0001f600 \\u"}).encode(),
    "no escapes": lambda x: json.dumps({"text": f"{x} é 漢 😀"}, ensure_ascii=False).encode(),
    "spaces": lambda x: f' {{ "text" :\t"{x}" }} '.encode(),
    "a twin": lambda x: f'{{"text": "other", "text": "{x}"}}'.encode(),
    "a number": lambda x: f'{{"n": -1.5E+300, "text": "{x}", "m": {2**70}}}'.encode(),
    "a CR": lambda x: f'{{"text": "{x}"}}\r'.encode(),
    "null": lambda x: b'{"text": null, "other": 5}',
}
# JSON that some readers take and others do not.
_UNCERTAIN = {
    "5,000 digits": lambda x: f'{{"n": {"9" * 5000}, "text": "{x}"}}'.encode(),
    "2,000 lists": lambda x: f'{{"n": {"[" * 2000}{"]" * 2000}, "text": "{x}"}}'.encode(),
    "half a surrogate beside": lambda x: f'{{"n": "\\ud83d", "text": "{x}"}}'.encode(),
}
_BAD = {
    "half a surrogate": lambda x: f'{{"text": "{x} \\ud83d"}}'.encode(),
    "the other half": lambda x: f'{{"text": "{x} \\ude00"}}'.encode(),
    "no JSON": lambda x: f'{{"text": "{x}"'.encode(),
    "a number for a text": lambda x: b'{"text": 5}',
    "no field": lambda x: f'{{"content": "{x}"}}'.encode(),
    "bytes": lambda x: f'{{"text": "{x}'.encode() + b'\xff\xfe"}',
}


def records(box: Sandbox) -> str:
    """JSON Lines with odd records, of which some are bad, refused or left out."""
    draw, lines, documents, uncertain = box.draw, [], [], set()
    names = draw.sample([*_GOOD, *_UNCERTAIN, *_BAD], draw.randint(1, 4))
    places = dict(zip(draw.sample(range(5, 40), len(names)), names, strict=True))
    for number in range(40):
        word, name = _words(draw, 12), places.get(number, "")
        make = (_GOOD | _UNCERTAIN | _BAD).get(name, lambda x: _line(x).rstrip())
        lines.append(make(word) + b"\n")
        if name == "null" or name in _BAD:
            continue
        if name in _UNCERTAIN:
            uncertain.add(len(documents))
            documents.append(word)
        else:
            documents.append(json.loads(lines[-1])["text"])
    (box.folder / "text.jsonl").write_bytes(b"".join(lines))
    (box.folder / "validation.jsonl").write_bytes(b"".join(_line(_words(draw, 9)) for _ in "12345"))
    skip = draw.random() < 0.6
    box.description = text = f"{names}{', skipped' if skip else ''}"
    options = ["--bad-records=skip"] if skip else []
    argv = ("--input=text.jsonl", "--vocabulary=data", *_PREPARED, *options)
    ended = box.do("prepare", *argv)
    if not skip and any(name in _BAD for name in names):
        _check_refused(ended, text)
        return text
    if not skip and uncertain and ended.status == 2:
        return f"{text}: refused"
    _check_done(ended, text)
    own = _own_vocabulary(box)
    ids = [[*own.encode(x), own.eos_id()] for x in documents]
    counts = range(len(uncertain) + 1)
    for left_out in (set(x) for n in counts for x in itertools.combinations(uncertain, n)):
        with contextlib.suppress(Violation):
            _check_documents(box, [x for i, x in enumerate(ids) if i not in left_out], text)
            return text
    _check_documents(box, ids, text)
    return text


_END, _BEGIN = "<|end|>", "<|begin|>"


def odd_tokenizers(box: Sandbox) -> str:
    """Vocabularies that begin texts in odd ways, lose characters, or have gaps in their ids."""
    draw = box.draw
    kind = draw.choice(("bytes", "bytes", "no unknown token", "an unknown token"))
    begin = draw.choice((None, _BEGIN, _END))
    by = draw.choice(("template", "setting", "both")) if begin else "nothing"
    gap = draw.random() < 0.3
    box.description = text = f"{kind}, begins with {begin} by {by}{', a gap' if gap else ''}"
    plain = [_words(draw, 12) for _ in range(30)]
    documents = [x + draw.choice(("", " é", " 漢字", "\tz\n", " a  b ", "  ")) for x in plain]
    tokenizer = _make_tokenizer(kind, plain)
    if by in ("template", "both"):
        pair = (begin, tokenizer.token_to_id(begin))
        tokenizer.post_processor = processors.TemplateProcessing(f"{begin} $A", None, [pair])
    content = json.loads(tokenizer.to_str())
    if gap:
        size, flags = tokenizer.get_vocab_size(), {"single_word": False, "special": True}
        flags |= {"lstrip": False, "rstrip": False, "normalized": False}
        added = {"id": size + draw.randint(1, 40), "content": "<|far|>", **flags}
        content["added_tokens"].append(added)
    folder = box.folder / "tokenizer"
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(content))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": _END}
    settings |= {"bos_token": begin} if begin else {}
    settings |= {"add_bos_token": True} if by in ("setting", "both") else {}
    settings |= {"unk_token": "<unk>"} if kind == "an unknown token" else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (box.folder / "text.jsonl").write_bytes(b"".join(map(_line, documents)))
    (box.folder / "validation.jsonl").write_bytes(b"".join(map(_line, plain[:9])))
    ended = box.do("prepare", "--input=text.jsonl", "--vocabulary=tokenizer", *_PREPARED)
    try:
        reader = tokenizers.Tokenizer.from_str(json.dumps(content))
    except Exception:  # what the library itself does not read
        _check_refused(ended, text)
        return text
    _check_done(ended, text)
    first = [reader.token_to_id(begin)] if begin else []
    encoded = reader.encode_batch(documents, add_special_tokens=False)
    end = reader.token_to_id(_END)
    _check_documents(box, [[*first, *x.ids, end] for x in encoded], text)
    unknown = sum(x.ids.count(reader.token_to_id("<unk>")) for x in encoded)
    lost = sum(map(_lost_characters, documents, encoded))
    for what, count in (("unknown pieces", unknown), ("lost characters", lost)):
        if count and not re.search(rf"(?<![\d,]){count:,}(?![\d,])", ended.output + ended.errors):
            raise Violation(f"{text}: {count} {what}, not said: {ended.output}")
    return f"{text}: {unknown} unknown, {lost} lost"


def _make_tokenizer(kind: str, texts: list[str]) -> tokenizers.Tokenizer:
    unknown = ["<unk>"] if kind == "an unknown token" else []
    tokenizer = tokenizers.Tokenizer(models.BPE(**({"unk_token": "<unk>"} if unknown else {})))
    options = {"vocab_size": 400, "special_tokens": [_END, _BEGIN, *unknown]}
    if kind == "bytes":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        options["initial_alphabet"] = pre_tokenizers.ByteLevel.alphabet()
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(show_progress=False, **options))
    return tokenizer


def _lost_characters(document: str, encoded: tokenizers.Encoding) -> int:
    covered = {i for begin, end in encoded.offsets for i in range(begin, end)}
    return sum(not x.isspace() and i not in covered for i, x in enumerate(document))


def model_files(box: Sandbox) -> str:
    """Files of a small Llama with what other programs write, or with what is missing or stale."""
    model = Llama(box.draw)
    refused, text = model.write(box.folder / "model")
    box.description = text
    texts = [_words(box.draw, 30) for _ in range(40)]
    (box.folder / "text.jsonl").write_bytes(b"".join(map(_line, texts)))
    (box.folder / "validation.jsonl").write_bytes(b"".join(map(_line, texts[:10])))
    ended = box.do("prepare", "--input=text.jsonl", "--vocabulary=model", *_PREPARED)
    _check_done(ended, text)
    overrides = {
        "data.path": "prepared", "run_dir": "continued", "model.length": LENGTH, "batch_size": 4,
        "microbatches": 1, "chinchilla_tokens": 4 * LENGTH, "stop": "1 step", "eval.tokens": "all",
        "model.dtype": "float32", "schedule.peak": 1e-12, "schedule.warmup": "1 step",
        "averages": "('f25',)", "eval.batch_size": 4, "log.trackers": "()",
    }  # fmt: skip
    argv = (f"--config.{name}={value}" for name, value in overrides.items())
    ended = box.do("train", "--config=continued:model", *argv)
    if refused:
        _check_refused(ended, text)
        return text
    _check_done(ended, text)
    right = model.loss(np.asarray(_tokens(box.folder / "prepared", VALIDATION)))
    (loss,) = {row.values["eval/last/loss"] for row in _evaluations(box.folder / "continued")}
    if abs(loss - right) > 2e-5 * right:
        raise Violation(f"{text}: a loss of {loss:.6f}, not {right:.6f}")
    return text


def _evaluations(run: pathlib.Path) -> list:
    return [row for row in read_records(run) if "eval/last/loss" in row.values]


def late_averages(box: Sandbox) -> str:
    """An average that joins a run at a random step: the error of its kernel, and of what uses it.

    The right errors are those of kernels that are built update by update.
    """
    draw = box.draw
    since, f = draw.randint(10, 17), draw.choice((2.0, 3.5, 5.0, 9.0, 20.0, 50.0))
    wanted = f"--config.averages=('f6.25', 'f25', 'f{f:g}')"
    box.description = text = f"f{f:g} since {since}"
    if since > 10:
        _check_done(box.do("train", "--config=run.py", f"--config.stop={since} steps"), text)
    _check_done(box.do("train", "--config=run.py", wanted, "--config.stop=2x"), text)
    for name in (f"f{f:g}", f"f={f:g}", f"f={draw.uniform(2, 50):.2f}"):
        folder = name.replace("=", "")
        argv = ("--run=run", f"--weights={name}", f"--output={folder}-{'=' in name}")
        ended = box.do("export", *argv, "--max-error=9")
        _check_done(ended, f"{text}: {name}")
        written = json.loads((box.folder / argv[2][9:] / "provenance.json").read_text())
        ideal, total = _kernel(float(name.lstrip("f=")), 20), np.zeros(21)
        for part, coefficient in written["mix"].items():
            label, _, step = part.partition("@")
            begun = since if label == f"f{f:g}" else 0
            kernel = _kernel(float(label[1:]), int(step or 20), begun)
            total[: len(kernel)] += coefficient * kernel
        right = np.linalg.norm(total - ideal) / np.linalg.norm(ideal)
        if abs(written["kernel_error"] - right) > 1e-3 * right + 1e-6:
            error = written["kernel_error"]
            raise Violation(f"{text}: {name} has a kernel error of {error:.5f}, not {right:.5f}")
    return text


def _kernel(f: float, steps: int, since: int = 0) -> np.ndarray:
    """Returns the weight of every iterate in an average that began at an update."""
    kernel = np.zeros(steps + 1)
    kernel[since] = 1
    for t in range(since + 1, steps + 1):
        keep = 2 ** (-f / t)
        kernel *= keep
        kernel[t] += 1 - keep
    return kernel


def mirrors(box: Sandbox) -> str:
    """Signals at random rows, often in an evaluation, of a run with TensorBoard and W&B.

    All evaluations of the records are in both, and what TensorBoard shows is what the records have.
    """
    trackers = {"tensorboard": {}, "wandb": {"project": "mine"}}
    options = (f"--config.log.trackers={trackers}",)
    options += ("--config.eval.every=1 step", "--config.eval.batch_size=1")
    options += ("--config.log.every=1 step",)
    words = []
    for _ in range(box.draw.choice((1, 2, 3))):
        name, rows = box.draw.choice(("TERM", "KILL", "INT")), box.draw.randint(1, 25)
        rows += len(wandb_stub.read_rows(box.run))
        start = box.begin("train", "--config=run.py", "--config.stop=4x", *options, wandb=True)
        while not start.has_ended and len(wandb_stub.read_rows(box.run)) < rows:
            time.sleep(0.002)
        time.sleep(box.draw.uniform(0, 0.02))
        start.kill(getattr(signal, f"SIG{name}"))
        box.end(start, limit=20)
        words.append(f"{name} after {rows} rows")
    box.description = text = ", ".join(words)
    ended = box.do("train", "--config=run.py", "--config.stop=4x", *options, wandb=True)
    _check_done(ended, text)
    evaluated = {x.step: x.values for x in _evaluations(box.run) if x.step > 10}
    if sorted(evaluated) != list(range(11, 41)):
        raise Violation(f"{text}: evaluations of {sorted(evaluated)}")
    right = {
        (step, name): value
        for step, values in evaluated.items()
        for name, value in values.items()
        if name.startswith("eval/")
    }
    sent = {
        (row.get("step", row["_step"]), x): y
        for row in wandb_stub.read_rows(box.run)
        for x, y in row.items()
    }
    for name, found in (("Weights & Biases", sent), ("TensorBoard", _shown(box.run))):
        missing = [key for key in right if key not in found]
        other = [key for key in right if key in found and abs(found[key] - right[key]) > 1e-6]
        if missing or other:
            raise Violation(f"{text}: {name} lacks {missing[:5]}, has others of {other[:5]}")
    return text


def _shown(run: pathlib.Path) -> dict[tuple[int, str], float]:
    """Returns what TensorBoard shows: a start drops the values at and after its first step."""
    shown: dict[tuple[int, str], float] = {}
    for file in sorted((run / "tensorboard").iterdir(), key=lambda x: x.name):
        content = file.read_bytes()
        while len(content) >= 16:  # length and its checksum, event and its checksum
            length = int.from_bytes(content[:8], "little")
            event = event_pb2.Event()  # pyright: ignore[reportAttributeAccessIssue]
            event.ParseFromString(content[12 : 12 + length])
            content = content[16 + length :]
            if event.session_log.status == 1:
                shown = {key: value for key, value in shown.items() if key[0] < event.step}
            for value in event.summary.value:
                shown[event.step, value.tag] = value.simple_value
    return shown


INPUT_KINDS = {
    compressed: 1,
    records: 1,
    odd_tokenizers: 1,
    model_files: 1,
    late_averages: 1,
    mirrors: 1,
}
