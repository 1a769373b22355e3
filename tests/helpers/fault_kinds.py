"""Kinds of random faults: each damages a sandbox, and checks what users are promised.

A kind is a function of a `Sandbox` that returns a description of what it did. It raises an
AssertionError where a promise is not kept.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import bucket_copies
from fault_inputs import INPUT_KINDS
from fault_sandbox import LIMIT_SECONDS, STOP_LATER, Ended, Sandbox, Violation
from forked_starts import environment as environment_of
from training_runs import bits

from anytime_jax.commands import dispatch
from anytime_jax.commands.argument_parser import Parser
from anytime_jax.config.run_settings import all_settings
from anytime_jax.storage.files import remove_directory
from anytime_jax.storage.paths import storage_path

WORDS = [
    *("", "0", "-1", "nan", "inf", "1e400", "2147483648", "3", "2.5", "abc", "all", "4x", "1 step"),
    *("None", "True", "(1,", "(25.0,)", "[1]", "{}", '"', "0x10", "\n", "\x1b[0m", "9" * 5000),
    *("data", "other", "run.py", "/dev/null", "/proc/self", "~/x", "gs://bucket/x", "x" * 300),
    *('{"0x": 8, "2x": 16}', '{"a": ("data", 1.0)}', '{"0x": {"a": ("data", 0.5)}}'),
    *("1e-320", "-0.0", "9" * 19, "mask", "x=1", "f25", "a:b", "constant:peak=1,peak=2"),
]
# Arguments with which each command works, or asks for what is not here; options are added.
ARGUMENTS = {
    "train": ("--config=run.py",),
    "prepare": ("--input=run.py", "--train-vocabulary=300", "--output=prepared"),
    "evaluate": ("--run=run",),
    "generate": ("--run=run", "--tokens=5"),
    "export": ("--run=run", "--output=exported"),
    "runs": ("--run=run",),
}
READERS = (
    ("runs", "--run=run", "--verify"),
    ("runs", "--run=."),
    ("evaluate", "--run=run"),
    ("generate", "--run=run", "--tokens=5"),
    ("export", "--run=run", "--output=exported"),
)


def configuration(box: Sandbox) -> str:
    """One or two settings that are misspelt or have odd values."""
    overrides = []
    for _ in range(box.draw.choice((1, 1, 2))):
        name = box.draw.choice(list(all_settings()))
        if box.draw.random() < 0.2:
            at = box.draw.randrange(len(name))
            name = name[:at] + box.draw.choice("xyz_.") + name[at + 1 :]
        overrides.append(f"--config.{name}={box.draw.choice(WORDS)}")
    _try(box, "train", "--config=run.py", *overrides)
    return f"{[x[:80] for x in overrides]}"


def _try(box: Sandbox, command: str, *argv: str, **spec: Any) -> Ended:
    """Runs a command, for up to 20 s as it may be much work; a refusal must change no file."""
    before = box.fingerprint()
    start = box.begin(command, *argv, **spec)
    deadline = time.monotonic() + 20
    while not start.has_ended and time.monotonic() < deadline:
        time.sleep(0.1)
    start.kill(signal.SIGTERM)
    ended = box.end(start)
    if ended.status == 2 and box.fingerprint() != before:
        raise Violation(f"{command} {argv} was refused, but files changed: {ended.errors}")
    return ended


def options(box: Sandbox) -> str:
    """One to three options of a command with odd values, or an argument that is left out."""
    command = box.draw.choice(list(ARGUMENTS))
    parser = Parser(add_help=False)
    dispatch.import_command(command).add_options(parser)
    names = sorted({x for action in parser._actions for x in action.option_strings})
    argv = [x for x in ARGUMENTS[command] if box.draw.random() < 0.9]
    for name in box.draw.sample(names, min(len(names), box.draw.choice((1, 1, 2, 3)))):
        word = box.draw.choice([x for x in WORDS if not x.startswith("gs:")])
        argv += [name] if box.draw.random() < 0.2 else [f"{name}={word}"]
    ended = _try(box, command, *argv, environment={"HOME": str(box.folder.parent / "home")})
    return f"{command} {[x[:80] for x in argv]}: status {ended.status}"


def python(box: Sandbox) -> str:
    """Odd calls of the Python API, some of them in threads."""
    seed = box.draw.randrange(10**9)
    ended = box.do("runs", python=(str(box.folder), seed))
    if ended.status:
        raise Violation(f"{seed}: {ended.output[-500:]} {ended.errors}")
    box.recover(STOP_LATER)  # a call may have trained the run to there
    return f"{seed}: {ended.output.strip()[:200]}"


_bucket_guard = threading.Lock()  # one at a time: they share a server, which makes the faults


def bucket(box: Sandbox) -> str:
    """A bucket that fails, answers nothing or closes its connections while a run trains there."""
    with _bucket_guard:
        server, target = box.original.server, f"gs://bucket/{box.folder.name}"
        bucket_copies.to_bucket(box.run, storage_path(f"{target}/run"))
        argv = ("--config=run.py", STOP_LATER, f"--config.run_dir={target}/run")
        spec = {"environment": dict(server.environment)}
        name = box.draw.choice(("503", "429", "silent", "closed", "killed", "none"))
        seconds = box.draw.uniform(0, 8)
        start = box.begin("train", *argv, **spec)
        time.sleep(seconds)
        try:
            if name.isdecimal():
                server.fail(box.draw.randrange(1, 40), int(name))
            elif name == "silent":
                server.be_silent(box.draw.uniform(1, 20))
            elif name == "closed":
                server.stop()
                time.sleep(box.draw.uniform(0, 10))
                server.start()
            elif name == "killed":
                start.kill(signal.SIGKILL)
            first = box.end(start, limit=3 * LIMIT_SECONDS)
        finally:
            server.failures.clear()
            server.silent_until = 0.0
        text = f"{name} after {seconds:.1f} s: status {first.status}"
        if first.status:
            ended = box.do("train", *argv, limit=3 * LIMIT_SECONDS, **spec)
            if ended.status:
                raise Violation(f"{text}; the run does not resume: {ended.errors[-500:]}")
        copied = bucket_copies.to_disk(storage_path(f"{target}/run"), box.folder / "copied")
        remove_directory(storage_path(target))  # the server searches all that it has
    if bits(copied, 40) != box.original.arrays[40]:
        raise Violation(f"{text}; other arrays than those of the unbroken run")
    return text


def damage(box: Sandbox) -> str:
    """A damaged, replaced or missing file of the run, its data or its configuration."""
    files = [x for x in sorted(box.folder.rglob("*")) if "other" not in x.parts and x.is_file()]
    file = box.draw.choice([x for x in files if "__pycache__" not in x.parts])
    change = box.draw.choice(list(_CHANGES))
    before = box.fingerprint()
    _CHANGES[change](box, file)
    box.description = text = f"{file.relative_to(box.folder)}: {change}"
    ended = [box.evaluate(), box.do(*box.draw.choice(READERS)), box.train()]
    if ended[-1].status == 0 and box.draw.random() < 0.5:
        box.do("runs", "--run=run", "--verify")
    if ended[-1].status and before == box.fingerprint():
        raise Violation(f"{text} changed nothing, and yet {ended[-1].errors}")
    return text


def _flip(box: Sandbox, file: pathlib.Path) -> None:
    content = bytearray(file.read_bytes())
    if content:
        content[box.draw.randrange(len(content))] ^= 1 << box.draw.randrange(8)
    file.write_bytes(content)


def _replace_by_directory(box: Sandbox, file: pathlib.Path) -> None:
    file.unlink()
    file.mkdir()


def _link_to(target: str) -> Callable[[Sandbox, pathlib.Path], None]:
    def link(box: Sandbox, file: pathlib.Path) -> None:
        file.unlink()
        file.symlink_to(file if target == "itself" else target)

    return link


def _make_pipe(box: Sandbox, file: pathlib.Path) -> None:
    file.unlink()
    os.mkfifo(file)


def _swap(box: Sandbox, file: pathlib.Path) -> None:
    others = [x for x in sorted(box.folder.rglob("*")) if x.is_file() and x != file]
    shutil.copy(box.draw.choice(others), file)


_CHANGES: dict[str, Callable[[Sandbox, pathlib.Path], object]] = {
    "a flipped bit": _flip,
    "another flipped bit": _flip,
    "cut in half": lambda box, x: x.write_bytes(x.read_bytes()[: x.stat().st_size // 2]),
    "zeros": lambda box, x: x.write_bytes(bytes(x.stat().st_size)),
    "empty": lambda box, x: x.write_bytes(b""),
    "missing": lambda box, x: x.unlink(),
    "noise": lambda box, x: x.write_bytes(box.draw.randbytes(200)),
    "deep JSON": lambda box, x: x.write_text("[" * 100_000),
    "more at its end": lambda box, x: x.write_bytes(x.read_bytes() + box.draw.randbytes(9)),
    "a directory": _replace_by_directory,
    "a link to itself": _link_to("itself"),
    "a link to nothing": _link_to("nothing"),
    "a link to a device": _link_to("/dev/zero"),
    "a pipe": _make_pipe,
    "the content of another": _swap,
}


def misplaced(box: Sandbox) -> str:
    """Directories that are missing, copied, renamed, linked or of another run."""
    checkpoints = box.run / "checkpoints"
    latest = checkpoints / "10"

    def copy(name: str, source: pathlib.Path = latest) -> Callable[[], object]:
        return lambda: shutil.copytree(source, checkpoints / name, dirs_exist_ok=True)

    def move_away() -> None:
        shutil.move(latest, box.folder / "moved")
        latest.symlink_to(box.folder / "moved")

    def take_other() -> None:
        shutil.rmtree(latest)
        shutil.copytree(box.folder / "other" / "checkpoints" / "10", latest)

    changes = {
        "a copy as 20": copy("20"),
        "a copy as 00020": copy("00020"),
        "a copy as ٢٠": copy("٢٠"),
        "a copy as 15": copy("15"),
        "an unfinished save": copy("12.orbax-checkpoint-tmp-7"),
        "another run's checkpoint": take_other,
        "another run's checkpoint as 20": copy("20", box.folder / "other" / "checkpoints" / "10"),
        "no latest checkpoint": lambda: shutil.rmtree(latest),
        "no checkpoints": lambda: shutil.rmtree(checkpoints),
        "no records": lambda: shutil.rmtree(box.run / "records"),
        "no run file": lambda: (box.run / "run.json").unlink(),
        "no data": lambda: shutil.rmtree(box.data),
        "a linked checkpoint": move_away,
        "an empty step": lambda: (checkpoints / "15").mkdir(),
        "a file for a step": lambda: (checkpoints / "15").write_text("15"),
        "the other run's run file": lambda: shutil.copy(
            box.folder / "other" / "run.json", box.run / "run.json"
        ),
        "a lock of a pipe": lambda: ((box.run / "lock").unlink(), os.mkfifo(box.run / "lock")),
    }
    name = box.draw.choice(list(changes))
    changes[name]()
    box.do(*box.draw.choice(READERS))
    ended = box.train()
    if ended.status:
        box.train("--fall-back")
    return name


def signals(box: Sandbox) -> str:
    """Signals at random moments of a training, which is resumed."""
    texts = []
    for _ in range(box.draw.choice((1, 1, 2))):
        name = box.draw.choice(("INT", "TERM", "HUP", "USR1", "USR2", "XCPU", "KILL", "INT twice"))
        number, seconds = getattr(signal, f"SIG{name.split()[0]}"), box.draw.uniform(0, 2.5)
        texts.append(f"{name} after {seconds:.2f} s")
        start = box.begin("train", "--config=run.py", STOP_LATER)
        time.sleep(seconds)
        start.kill(number)
        if "twice" in name:
            time.sleep(box.draw.uniform(0, 0.3))
            start.kill(number)
        ended = box.end(start, limit=20)
        if ended.status not in (0, 130, -number):
            raise Violation(f"{texts}: status {ended.status}: {ended.errors}")
    box.recover(STOP_LATER)
    return ", ".join(texts)


def interrupted_readers(box: Sandbox) -> str:
    """Ctrl-C and SIGTERM at random moments of the commands that read a run."""
    command, *argv = box.draw.choice(READERS)
    seconds = box.draw.uniform(0, 2)
    number = box.draw.choice((signal.SIGINT, signal.SIGINT, signal.SIGTERM))
    start = box.begin(command, *argv)
    time.sleep(seconds)
    start.kill(number)
    ended = box.end(start, limit=20)
    text = f"{command}: {signal.Signals(number).name} after {seconds:.2f} s"
    if ended.status not in (0, 130, -number):
        raise Violation(f"{text}: status {ended.status}: {ended.errors}")
    return text


def streams(box: Sandbox) -> str:
    """Standard streams that are closed, unread, full, or of few characters."""
    kinds = (None, "closed", "unread", "full", "ascii", "latin")
    spec = {"stdout": box.draw.choice(kinds[1:]), "stderr": box.draw.choice(kinds)}
    spec["environment"] = {"COLUMNS": box.draw.choice(("1", "20", "80", "9999", "x"))}
    if box.draw.random() < 0.5:
        ended = box.train(**spec)
        if ended.status:
            raise Violation(f"{spec} ended the training: status {ended.status}, {ended.errors}")
        return f"train: {spec}"
    command, *argv = box.draw.choice(READERS)
    ended = box.do(command, *argv, **spec)
    allowed = {"unread": (0, 141), "full": (0, 1)}.get(str(spec["stdout"]), (0,))
    if ended.status not in allowed:
        raise Violation(f"{command}, {spec}: status {ended.status}, {ended.errors}")
    return f"{command}: {spec}"


def environment(box: Sandbox) -> str:
    """Odd variables, limits of the process, and clocks that jump or stand still."""
    nowhere, file = str(box.folder / "nowhere"), str(box.folder / "run.py")
    spec = box.draw.choice(
        [
            *({"environment": {name: value}}
              for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME", "JAX_COMPILATION_CACHE_DIR")
              for value in (None, nowhere, file, "")),
            *({"environment": {"TERM": x, "NO_COLOR": "1"}} for x in ("dumb", "", "xterm")),
            *({"environment": {"TZ": x}} for x in ("Asia/Kathmandu", "nonsense")),
            *({"umask": x} for x in (0, 0o77, 0o777)),
            *({"clock": kind, "after": box.draw.uniform(0, 3)}
              for kind in ("forward", "back", "frozen", "forward", "back")),
            *({"limits": {"RLIMIT_NOFILE": x}} for x in (24, 48, 96, 256)),
            *({"limits": {"RLIMIT_AS": x * 2**20}} for x in (1500, 3000, 6000)),
            *({"limits": {"RLIMIT_FSIZE": x}} for x in (0, 1000, 20_000, 100_000)),
            {"limits": {"RLIMIT_CORE": 0}},
        ]
    )  # fmt: skip
    box.train(**spec)
    if "umask" in spec and os.getuid():
        return str(spec)  # it may have locked itself out
    box.recover()
    return str(spec).replace(str(box.folder), "")


def removed(box: Sandbox) -> str:
    """Files and directories removed while a run trains."""
    name = box.draw.choice(("run", "run/checkpoints", "run/records", "run/run.json", "run/lock"))
    name = box.draw.choice((name, "data", "run/checkpoints/10"))
    start = box.begin("train", "--config=run.py", STOP_LATER)
    time.sleep(box.draw.uniform(0.5, 2.5))
    path = box.folder / name
    shutil.rmtree(path, ignore_errors=True)
    path.unlink(missing_ok=True) if not path.is_dir() else None
    ended = box.end(start)
    _after(box, name)
    return f"{name}: status {ended.status}"


def _after(box: Sandbox, name: str) -> Ended:
    ended = box.train()
    return ended if ended.status != 1 else box.train("--fall-back")


def disk(box: Sandbox) -> str:
    """A disk that is small, fills up, has few inodes, or cannot be written."""
    kind = box.draw.choice(("small", "fills up", "few inodes", "read-only"))
    size = box.draw.randrange(2_600, 6_000)
    options = f"size={60_000 if kind == 'few inodes' else size}k"
    if kind == "few inodes":
        options += f",nr_inodes={box.draw.randrange(150, 400)}"
    script = box.folder / "disk.sh"
    script.write_text(_DISK_SCRIPT)
    words = ["unshare", "-rm", "bash", str(script), kind, options, sys.executable]
    words.append(f"{box.draw.uniform(3, 6):.1f}")
    variables = environment_of()  # with the compiler's options of the other starts
    began = time.monotonic()
    done = subprocess.run(
        words, cwd=box.folder, env=variables, capture_output=True, text=True,
        timeout=2 * LIMIT_SECONDS,
    )  # fmt: skip
    text = f"{kind}, {options}: status {done.returncode}"
    if done.returncode == 77:
        return "skipped: no mounts here"
    box.ended.append(Ended(done.returncode, "", done.stderr, time.monotonic() - began))
    lines = done.stderr.splitlines()
    if done.returncode not in (0, 1, 2) or len(lines) != bool(done.returncode):
        raise Violation(f"{text}: {done.stderr[:1500]}")
    if lines and not lines[0].startswith("error: "):
        raise Violation(f"{text}: {lines[0]}")
    shutil.rmtree(box.run)
    shutil.move(box.folder / "copied", box.run)
    _after(box, kind)
    return text


_DISK_SCRIPT = """
mkdir disk && mount -t tmpfs -o "$2" small disk || exit 77
cp -r run disk/run || exit 77
mount --bind disk/run run || exit 77
if [ "$1" = read-only ]; then mount -o remount,ro,bind run || exit 77; fi
if [ "$1" = "fills up" ]; then
  (sleep "$4"; head -c 9000000 /dev/zero >disk/filler 2>/dev/null) &
fi
"$3" -m anytime_jax.main --config=run.py --config.stop=4x \\
  "--config.log.trackers={'tensorboard': {}}" >/dev/null
status=$?
cp -r disk/run copied
exit $status
"""


def texts(box: Sandbox) -> str:
    """Odd text for `prepare`."""
    folder = box.folder / "texts"
    folder.mkdir()
    draw = box.draw
    contents = {
        "plain": "\n".join("words and words" for _ in range(200)).encode(),
        "noise": draw.randbytes(3000),
        "empty": b"",
        "NUL bytes": b"\0" * 1000,
        "one line": b"x" * 100_000,
        "JSON": b'{"text": "' + b"word " * 500 + b'"}\n',
        "deep JSON": b'{"text": ' + b"[" * 100_000,
        "no text": json.dumps({"text": 5}).encode(),
        "cut gzip": b"\x1f\x8b\x08\x00" + draw.randbytes(50),
        "UTF-16": "words".encode("utf-16") * 50,
    }
    names = ("a.txt", "b.json", "c.json.gz", "d.txt.gz", "é.txt", " .txt", "-x.txt", "e")
    chosen = draw.sample(sorted(contents), draw.randint(1, 3))
    for kind, name in zip(chosen, draw.sample(names, len(chosen)), strict=True):
        (folder / name).write_bytes(contents[kind])
    if draw.random() < 0.2:
        os.mkfifo(folder / "pipe.json")
    argv = [f"--input={draw.choice(('texts', 'texts/*', 'texts/e', 'no'))}"]
    argv += [f"--train-vocabulary={draw.choice((0, 5, 300, 1000, 10**9))}"]
    argv += ["--workers=1"]
    argv += [f"--output={draw.choice(('prepared', 'texts', 'texts/out', 'run.py', 'data'))}"]
    ended = box.do("prepare", *argv)
    return f"{chosen}, {' '.join(argv)}: status {ended.status}"


# Kinds with their shares of all faults.
KINDS = {
    configuration: 4,
    options: 8,
    python: 3,
    bucket: 0.5,
    damage: 5,
    misplaced: 3,
    signals: 3,
    interrupted_readers: 2,
    streams: 3,
    environment: 3,
    removed: 2,
    disk: 1,
    texts: 2,
    **INPUT_KINDS,
}
