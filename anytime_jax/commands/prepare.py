"""Turn text into a dataset of tokens.

Text and vocabularies are read where they are: paths, or addresses such as hf:// and https://, which
are read as streams. --config takes both, and the directory, from a configuration.

After a kill or Ctrl-C the same command resumes; for a finished dataset it does nothing. --share=I/N
does one of N shares of the work, which can run at the same time; the same command without it does
the rest. --verify reads the dataset at --output whole and compares its checksums.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from anytime_jax.commands import argument_parser
from anytime_jax.commands.argument_parser import positive_int
from anytime_jax.config import settings_reader
from anytime_jax.config.kinds import EVERY_PACKAGE, explain_errors
from anytime_jax.corpus.builtin_source import BuiltinSource, difference_note
from anytime_jax.corpus.preparation import Share, has_changed, prepare
from anytime_jax.corpus.source_interface import SOURCES, Source, describe_left_out
from anytime_jax.corpus.verification import verify_dataset
from anytime_jax.corpus.workers import Progress, ProgressCallback
from anytime_jax.data.dataset_info import METADATA_NAME, DatasetInfo
from anytime_jax.errors import BucketError, InputError, RunError
from anytime_jax.formatting import count_noun
from anytime_jax.storage.paths import is_address

EXAMPLES = (
    "--input=my_text --train-vocabulary=8000 --output=data/mine",
    "--config=150m_inv_sqrt",
    "--verify --output=data/mine",
)

_LINE_SECONDS = 5.0  # seconds between lines of progress in a log
_FIELD = "field "  # before the names of a source's fields, in the parsed arguments


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command, and the fields of the source that --source names."""
    add = parser.add_argument
    add(
        "--config",
        action="append",
        metavar="FILE[:NAME]",
        help="configuration whose data to prepare; --config.NAME=VALUE overrides a setting",
    )
    parser.set_defaults(trust=[])
    add(
        "--source",
        metavar="KIND",
        help=f"kind of the text: {', '.join(SOURCES.classes)}, or a class of your own as "
        "package.module:Class (docs/extend.md), each with options that --source=KIND --help lists "
        f"(default: {SOURCES.default})",
    )
    add(
        "--vocabulary",
        metavar="FILE",
        help="SentencePiece model, tokenizer.json, or the directory of a model or dataset; also an "
        "address",
    )
    add("--train-vocabulary", metavar="SIZE", type=int, help="pieces of a vocabulary to train")
    add(
        "--bos",
        choices=("none", "document"),
        help="whether the tokenizer's BOS begins documents (default: as its configuration says)",
    )
    add("--end-of-text", metavar="TOKEN", help="token that ends documents, of a tokenizer.json")
    add("--output", type=argument_parser.path, metavar="DIR", help="dataset directory")
    add("--workers", type=positive_int, metavar="N", help="processes (default: one per core)")
    add("--share", metavar="I/N", help="do share I of N, from 0 to N - 1 (see docs/data.md)")
    add("--verify", action="store_true", help="verify the dataset at --output")
    name = _source_name(getattr(parser, "argv", ()))
    group = parser.add_argument_group(f"options of --source={name}")
    for field, declared in settings_reader.declarations(SOURCES.find(name, EVERY_PACKAGE)).items():
        default = declared.default_text and f" (default: {declared.default_text})"
        text = f"{declared.meaning}{default}".replace("%", "%%")
        try:
            group.add_argument(_flag(field), dest=_FIELD + field, metavar="VALUE", help=text)
        except argparse.ArgumentError as error:
            reason = f"it has a field {field}, the name of an option of all: rename the field"
            raise InputError(reason, "--source", name) from error


def run(arguments: argparse.Namespace) -> int:
    """Prepares or verifies a dataset; returns the exit status."""
    if arguments.verify:
        return _verify(arguments)
    if arguments.config or arguments.overrides:
        _configure(arguments)
    if arguments.output is None:
        raise InputError("it is missing: give the directory of the dataset", "--output")
    if (arguments.vocabulary is None) == (arguments.train_vocabulary is None):
        raise InputError("give one of --vocabulary and --train-vocabulary")
    try:
        print(_prepare(arguments))
    except KeyboardInterrupt:
        print("\nthe same command resumes the preparation", file=sys.stderr)
        raise
    except (RunError, OSError) as error:
        is_unnamed = isinstance(error, OSError) and error.filename is None  # a write failed
        place = f"--output={arguments.output}: " if is_unnamed else ""
        kind = BucketError if isinstance(error, BucketError) else RunError
        raise kind(f"{place}{error}; the same command resumes the preparation") from error
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    allowed = ("--verify", "--output", "--workers")
    argument_parser.refuse(
        arguments, (x for x in arguments.given if x not in allowed), "with --verify"
    )
    if arguments.output is None:
        raise InputError("it is missing: give the directory of the dataset to verify", "--output")
    with _progress_display() as progress:
        info = verify_dataset(arguments.output, arguments.workers, progress)
    print(f"{_summary(info)}\nverified: {info.path}, fingerprint {info.fingerprint}")
    return 0


def _configure(arguments: argparse.Namespace) -> None:
    """Fills in what a configuration says of the data and no option gives."""
    from anytime_jax.commands import config_file  # it imports jax

    config = config_file.load(arguments)
    data, model = config.data, config.model
    given: dict[str, Any] = {"output": argument_parser.path(data.path)}
    source = arguments.source is None and {
        "input": data.text,
        "validation_input": data.validation_text,
    }
    if source and not (data.text or data.builtin_megabytes or getattr(arguments, f"{_FIELD}input")):
        reason = "it is empty, so nothing names a text: give it, or --input"
        raise InputError(reason, "config.data.text")
    if source and data.builtin_megabytes:
        given["source"], source = "builtin", {"megabytes": f"{data.builtin_megabytes:g}"}
    if arguments.vocabulary is arguments.train_vocabulary is None:
        size = model.vocab_size if data.builtin_megabytes else None
        vocabulary = None if size else data.vocabulary or config.initial_weights or None
        given |= {"train_vocabulary": size, "vocabulary": vocabulary}
    given |= {_FIELD + name: value for name, value in (source or {}).items() if value}
    for name, value in given.items():
        if getattr(arguments, name, None) is None:
            setattr(arguments, name, value)


def _prepare(arguments: argparse.Namespace) -> str:
    """Prepares the dataset or a share of it, and returns a summary."""
    start = time.monotonic()
    existed = (arguments.output / METADATA_NAME).is_file()
    share = None if arguments.share is None else Share.parse(arguments.share)
    vocabulary = arguments.vocabulary
    if vocabulary is None:
        vocabulary = arguments.train_vocabulary
    source = _source(arguments)
    known = (InputError, RunError, OSError)
    own_errors = functools.partial(explain_errors, [type(source).__module__], but=known)
    with own_errors(), _progress_display() as progress:
        info = prepare(
            source,
            arguments.output,
            vocabulary=vocabulary,
            share=share,
            end_of_text=arguments.end_of_text,
            bos=arguments.bos,
            workers=arguments.workers,
            progress=progress,
        )
    if info is None:
        return (
            f"share {share}: its parts are tokenized; the same command without --share does the "
            "rest and completes the dataset"
        )
    notes = _notes(info)
    if isinstance(source, BuiltinSource) and not existed and (note := difference_note()):
        notes.append(note)
    with contextlib.suppress(*known), own_errors():  # the text may be gone
        if existed and has_changed(source, info):
            notes.append(
                "note: the input has other or newer files than this dataset was made of: to read "
                "them, give another --output, or remove the dataset first"
            )
    state = "already prepared" if existed else f"ready in {time.monotonic() - start:.1f} s"
    program = arguments.program.rpartition(" ")[0]
    lines = [_summary(info), f"{state}: {info.path}", *notes]
    if arguments.config:
        words = [f"--config={arguments.config[0]}", *arguments.overrides]
        if "--output" in arguments.given:
            words.append(f"--config.data.path={arguments.output}")
        lines += ["train on it:", f"  {program} train {shlex.join(words)}"]
    else:
        path = str(info.path) if is_address(info.path) else os.path.relpath(info.path)
        path = str(info.path) if path.startswith("..") else path
        if _has_weights(arguments.vocabulary):
            purpose = "continue that model on it"
            words = [f"--config=continued:{arguments.vocabulary}", f"--config.data.path={path}"]
        else:
            purpose, words = "train a small model on it", [f"--config=own_text:{path}"]
        lines += [f"{purpose}:", f"  {program} train {shlex.join(words)}"]
    return "\n".join(lines)


def _has_weights(vocabulary: Any) -> bool:
    """Whether the vocabulary is that of a directory with a model, which could be continued."""
    if vocabulary is None or is_address(vocabulary):
        return False
    directory = Path(vocabulary)
    return (directory / "config.json").is_file() and any(directory.glob("*.safetensors"))


def _notes(info: DatasetInfo) -> list[str]:
    """Returns warnings about splits too small to train on."""
    return [
        f"note: {name} has {tokens:,} tokens, too few for {purpose}; give more text"
        for name, purpose, least in (
            ("train", "more than a trial", 100_000),
            ("validation", "a steady loss", 10_000),
        )
        if (tokens := info.splits[name].tokens) < least
    ]


def _source_name(argv: Sequence[str]) -> str:
    """The value of --source, before the other options are known."""
    parser = argument_parser.Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--source", default=SOURCES.default)
    return parser.parse_known_args(argv)[0].source.strip() or str(SOURCES.default)


def _source(arguments: argparse.Namespace) -> Source:
    name = arguments.source or str(SOURCES.default)
    settings = settings_reader.declarations(SOURCES.find(name, EVERY_PACKAGE))
    texts = {x: getattr(arguments, _FIELD + x, None) for x in settings}
    given = {x: settings_reader.Text(text) for x, text in texts.items() if text is not None}
    try:
        return settings_reader.read_kind(SOURCES, {"kind": name, **given}, EVERY_PACKAGE)
    except InputError as error:
        for one in error.errors:
            one.setting = _flag(one.setting) if one.setting in settings else one.setting
        raise


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"


def _summary(info: DatasetInfo) -> str:
    lines = [
        f"{split}: {count_noun(counts.documents, 'document')}, {counts.tokens:,} tokens"
        for split, counts in info.splits.items()
    ]
    lines += describe_left_out(info, info.settings.get("input", ""))
    for what, count, documents in (
        ("written as unknown: {:,} pieces", info.unknown_pieces, info.unknown_documents),
        ("in no token: {:,} characters", info.dropped_characters, info.dropped_documents),
    ):
        if count:
            lines.append(f"{what.format(count)}, of {count_noun(documents, 'document')}")
    return "\n".join(lines)


@contextlib.contextmanager
def _progress_display() -> Iterator[ProgressCallback]:
    """Yields a function that shows progress: as a bar on a terminal, as lines in a log."""
    if not sys.stderr.isatty():
        yield _print_progress()
        return
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import TextColumn

    tokens = TextColumn("{task.fields[tokens]:,} tokens")
    with Bars(*Bars.get_default_columns(), tokens, console=Console(stderr=True)) as bars:
        tasks = {}

        def show(progress: Progress) -> None:
            activity, done, total, tokens = progress
            if activity not in tasks:
                tasks[activity] = bars.add_task(activity, tokens=0)
            bars.update(tasks[activity], completed=done, total=total, tokens=tokens)

        yield show


def _print_progress() -> ProgressCallback:
    last = -_LINE_SECONDS

    def show(progress: Progress) -> None:
        nonlocal last
        activity, done, total, tokens = progress
        if time.monotonic() - last >= _LINE_SECONDS or done in (0, total):
            last = time.monotonic()
            print(
                f"{activity}: {done}/{total} done, {tokens:,} tokens", file=sys.stderr, flush=True
            )

    return show
