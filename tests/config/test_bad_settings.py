"""A campaign of bad settings: each is a run that can be made, or one clear line and status 2.

Hypothesis changes one to three settings of a run, in its file or on its command line, and each
change goes through the door as a user's would (`campaign.py`).
"""

import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

import hypothesis
import pytest
import small_run
from hypothesis import strategies as st
from settings_attacks import Answer, Change, Door
from small_run import dataset_fixture  # noqa: F401

from anytime_jax.config.fields import flatten
from configs import quickstart

SECONDS = 5.0  # to an answer, imports and all
LONGEST = 600  # characters of a complaint

# What is changed, as Python source.


def words(text: str) -> list[str]:
    return text.split()


WRONG_KINDS = words(
    "None True False '' '1' [] [1] (1,) {} {'a':1} set() {1} b'8' object() len 1j ... "
    "np.float32(1.5) np.int64(8) np.float64(0.5) np.nan np.array([1,2]) (lambda:1) ConfigDict() "
    "config_dict.placeholder(int) config_dict.required_placeholder(int) float('8') Ugly()"
)
NUMBERS = words(
    "0 -1 1 2 3 5 7 8 12 -1.5 0.5 1.5 -0.0 math.nan math.inf -math.inf 5e-324 1e-46 1e-30 1e39 "
    "1e308 2**31-1 2**31 2**32 2**63 -2**63 10**30 10**400 10**5000"
)
NAMES = [repr(name) for name in (
    *("", " ", ".", "..", "\u2603", "\u202e", "a.b", "a\nb", "\x1b[31mred", "\0", "a\0b", "\udcff"),
    *("x" * 300, "x" * 5000, "/", "file", "full", "full ", "file/run", "gone/run", "/proc/run"),
    *("none", "Olmo", "float16", "olmo2", "xla", "cudnn", "scan", "spikes", "constant", "cosine"),
    *("wsd", "$x^", "[red]", "{name}", "%s"),
)]  # fmt: skip
POINTS = [
    *("", " ", "4", "x", "4x", "0x", "4X", "4xx", "-1x", "0.5x", "1e-3x", "1e9x", "1e99x", "infx"),
    *("0 steps", "1 step", "3 steps", "-3 steps", "0.1 steps", "٣ steps", "1__0 steps", "1_ steps"),
    *("1e99 tokens", "3.3B tokens", "0.5K tokens", "3 B steps", "nan steps", "3 furlongs"),
    *(
        "3steps",
        "1,000 steps",
        "4x+",
        "4x++",
        "+4x",
        "never",
        "never+",
        "horizon",
        "horizon+",
        "Never",
        "²x",
    ),
    *("1 steps 2 steps", "3 steps\n", "\x1b[0m4x", "9" * 30 + " steps", "9" * 5000 + " steps"),
]
AVERAGES = words(
    "() [] (0,) (-1,) (math.nan,) (math.inf,) (1e308,) (5e-324,) (10**400,) (None,) (True,) "
    "('f25',25.0) (25,25.0) ('last',) ('uniform','uniform0') ('ema1.0',) ('ema0.99999999999999',) "
    "('ema-1',) ('f',) ('F25',) ('f25x',) ('f1e3',) ('uniform1.5',) ('uniform99999999999',) ('٣',) "
    "('f٣',) ((25,),) 25.0 'f25' (np.float32(25),) (np.int64(25),) (b'f25',) ('x'*5000,) (Ugly(),) "
    "[6.25,'ema0.9'] ('f'+'9'*400,) ('uniform'+'9'*5000,) (25.0,25.0000000000000001) {25} {'f':25}"
)
RATES = {
    "constant": {},
    "inverse_sqrt": {"alpha": 7.0},
    "power": {"gamma": 0.5, "alpha": 7.0},
    "cosine": {"horizon": "1x", "floor": 0.1},
    "linear": {"horizon": "1x", "floor": 0.1},
    "wsd": {"horizon": "1x", "floor": 0.1, "shape": "linear"},
}
# Settings that are refused together: what one of them is depends on the others.
TOGETHER = [
    *({"model.heads": h} for h in (3, 5, 8, 16, 17)),
    *({"model.width": w, "model.heads": h} for w, h in ((10, 5), (12, 4), (18, 3), (2, 1), (1, 1))),
    *({"microbatches": m} for m in (2, 3, 8, 16)),
    *({"batch_size": b, "microbatches": m}
      for b, m in ((12, 1), (12, 3), (24, 3), (25, 3), (64, 8), (4, 1))),
    *({"mesh.data": d, "mesh.fsdp": f, "mesh.tensor": t}
      for d, f, t in ((8, 1, 1), (4, 2, 1), (2, 2, 2), (3, 1, 1), (1, 1, 1), (-1, 3, 1), (-1, 1, 3),
                      (1, 8, 1), (-1, 1, 8), (-1, 16, 1), (16, 1, 1), (-1, 4, 2))),
    *({"mesh.fsdp": 4, "model.width": w, "model.heads": 1} for w in (6, 8, 10)),
    *({"mesh.tensor": 2, "model.mlp_width": w} for w in (31, 33, 34)),
    *({"mesh.tensor": 4, "model.embedding_rows": w} for w in (302, 304)),
    *({"model.vocab_size": v, "model.embedding_rows": r} for v, r in ((305, 304), (200, 304))),
    *({"eval.tokens": t, "model.length": n} for t, n in ((7, 8), (8, 8), (80, 16), (127, 128))),
    *({"eval.tokens": t} for t in (7, 8, 10**6, 2**31 - 1)),
    *({"eval.batch_size": b} for b in (1, 6, 12, 2**31 - 8)),
    *({"stop": s, "data.repeat": r} for s in ("never", "100x", "2e9 steps") for r in (True, False)),
    *({"chinchilla_tokens": c, "stop": "3 steps"} for c in (1, 10**9, 10**18, 10**400)),
    *({"data.path": p, "data.builtin_megabytes": m}
      for p in ("gone", "file", "full", "a\0b", "") for m in (0, 0.1, 1e9)),
    {"data.path": "gone", "data.builtin_megabytes": 0.1, "run_dir": "file"},
    {"data.path": "gone", "data.builtin_megabytes": 0.1, "model.layers": 10**6},
    {"data.path": "gone", "data.builtin_megabytes": 0.1, "mesh.fsdp": 8, "model.width": 20},
    {"data.path": "gone", "data.builtin_megabytes": 0.1, "model.vocab_size": 100},
    *({"model.layers": n, "model.layer_loop": how}
      for n in (1, 100, 10**4, 2**31 - 1) for how in ("scan", "unroll")),
    *({"model.width": 2**20, "model.heads": h} for h in (1, 2**10)),
    *({"model.attention": a, "model.dtype": d}
      for a in ("cudnn", "xla", "plain") for d in ("bfloat16", "float32")),
    *({"checkpoint.keep_every": e, "checkpoint.every": e}
      for e in ("0 steps", "1 step", "2e9 steps")),
    *({"run_dir": r} for r in ("file", "full", "file/run", "full/run", "a/b/c", "x" * 300, "~")),
    *({"log.wandb_project": w} for w in ("mine", " ", "a\nb")),
]  # fmt: skip
# On a command line.
TYPED = [
    *("", "0", "-1", "nan", "inf", "-inf", "1e400", "1e-320", "2147483648", "3", "2.5", "abc"),
    *("None", "True", "yes", "(1,", "(1,)", "[1]", "{}", "'x'", '"', "0x10", " 8", "٣", "1_000"),
    *("=", "a=b", "\n", "\x1b[0m", "\udcff", "9" * 5000, "x" * 5000, "__import__('os')"),
]


@pytest.fixture(scope="module")
def door(tmp_path_factory, dataset):
    it = Door(tmp_path_factory.mktemp("door"), dataset.path)
    yield it
    it.close()


# The verdict

POINTED = {"stop", "eval.every", "checkpoint.every", "checkpoint.keep_every", "log.every"}
POINTED |= {"schedule.warmup", "schedule.horizon"}
# A message may name another setting, which does not fit the one that was changed: how far away a
# point is, how many windows it takes, and whether the devices and the disk hold the state.
RELATED = {
    "chinchilla_tokens": POINTED,
    "batch_size": POINTED | {"microbatches"},
    "model.length": POINTED | {"eval.tokens"},
    "microbatches": {"batch_size"},
    "data.repeat": {"stop"},
    "data.path": {"eval.tokens", "stop"},
    "data.builtin_megabytes": {"eval.tokens", "stop"},
    "model.layers": {"run_dir"},
    "model.width": {"run_dir"},
    "model.mlp_width": {"run_dir"},
    "model.embedding_rows": {"run_dir"},
    "averages": {"run_dir", "model"},
}
NEEDS_DATA = r"config\.(eval\.tokens|stop|data\.)"  # what only the data can tell


def is_named(name: str, line: str) -> bool:
    """Whether a line names a setting in full or as a quoted word, or the group it is in."""
    group, _, last = name.rpartition(".")
    forms = [f"config.{name}", f"'{last}'", f"{name} = "]
    forms += [f"config.{group}"] * bool(group)
    cut = len(last) > 20 and repr(last)[:20] in line  # the middle of a long word is left out
    return cut or any(re.search(rf"(?<![\w.]){re.escape(form)}(?!\w)", line) for form in forms)


def faults(change: Change, answer: Answer, import_seconds: float) -> list[str]:
    """What is wrong with an answer."""
    found = []
    if answer.compiled:
        found.append(f"{answer.compiled} programs were compiled")
    if import_seconds + answer.cpu_seconds > SECONDS:
        found.append(f"it took {answer.cpu_seconds:.1f} s and the imports {import_seconds:.1f} s")
    if answer.status == 0 and answer.valid:
        return [*found, *(["it complained"] if answer.err else [])]
    if answer.status != 2:
        return [*found, f"exit status {answer.status}"]
    names = change.names.union(*(RELATED.get(name, ()) for name in change.names))
    checks = {
        "it is not one line": len(answer.err.splitlines()) == 1,
        "it does not begin with 'error: '": answer.err.startswith("error: "),
        f"it has {len(answer.err)} characters": len(answer.err) < LONGEST,
        "it cannot be printed": answer.err.removesuffix("\n").isprintable(),
        "it names no setting that was changed": any(is_named(n, answer.err) for n in names),
        "it printed something else": not answer.out or answer.prepared,
        "text was prepared first": not answer.prepared or re.search(NEEDS_DATA, answer.err),
        "it left something on disk": not answer.left,
    }
    return [*found, *(fault for fault, well in checks.items() if not well)]


# The changes

BASES = {"tiny": small_run.settings("run", "data"), "quickstart": quickstart.get_config()}
FLAT = dict(flatten(BASES["tiny"].to_dict()))
GROUPS = sorted({name.partition(".")[0] for name in FLAT if "." in name})
TEXTS = sorted(POINTED & set(FLAT))


def of_kind(*kinds: type) -> list[str]:
    return [name for name, value in FLAT.items() if type(value) in kinds]


def typos(name: str) -> list[str]:
    group, dot, last = name.rpartition(".")
    made = [last[1:], last[:-1], last + "s", last.upper(), last[1::-1] + last[2:], last * 20]
    return [group + dot + typo for typo in made if typo and typo != last]


ODD_NAMES = words("\u2603 __class__ get model.get data.\u2603 mesh.\x1b[0m 1 model.-1")
ODD_NAMES += ["x" * 300, "a b", " ", "", "\n", "model. "]
MISSPELT = [typo for name in FLAT for typo in typos(name)]
EDITS = st.one_of(
    st.tuples(st.sampled_from([*FLAT, *GROUPS]), st.sampled_from(WRONG_KINDS)),
    st.tuples(st.sampled_from(of_kind(int, float)), st.sampled_from(NUMBERS)),
    st.tuples(st.sampled_from(of_kind(str)), st.sampled_from(NAMES)),
    st.tuples(st.sampled_from(TEXTS), st.sampled_from(POINTS).map(repr)),
    st.tuples(st.just("averages"), st.sampled_from(AVERAGES)),
    st.tuples(st.sampled_from([*FLAT, *GROUPS]), st.none()),
    st.tuples(st.sampled_from(MISSPELT + ODD_NAMES), st.sampled_from(WRONG_KINDS + NUMBERS)),
)


@st.composite
def rates(draw):
    """A whole learning rate, one of its settings changed."""
    kind = draw(st.sampled_from(list(RATES)))
    given = {"kind": kind, "peak": 1e-2, "warmup": "3 steps", "warmup_init": 0.1, **RATES[kind]}
    given = {name: repr(value) for name, value in given.items()}
    name = draw(st.sampled_from(list(given)))
    points = [repr(point) for point in POINTS]
    pool = points if name in ("warmup", "horizon") else NUMBERS + WRONG_KINDS
    given[name] = draw(st.sampled_from(pool))
    stop = draw(st.sampled_from(["1x", "2x", "horizon", "never", "1x+", "0.5x"]))
    group = "ConfigDict({" + ", ".join(f"{k!r}: {v}" for k, v in given.items()) + "})"
    return [("schedule", group), ("stop", repr(stop))]


@st.composite
def flags(draw):
    """An argument of the command line."""
    name = draw(st.sampled_from(list(FLAT)))
    bad = draw(st.sampled_from([name] * 6 + [*typos(name), name.partition(".")[0]]))
    pool = POINTS if name in TEXTS else AVERAGES if name == "averages" else TYPED
    return f"--config.{bad}={draw(st.sampled_from(pool) | st.sampled_from(TYPED))}"


FORMS = words("edit edit edits edits together together together rates flags flags both")


@st.composite
def changes(draw):
    """One to three changed settings of a run."""
    form = draw(st.sampled_from(FORMS))
    argv = draw(st.lists(flags(), min_size=1, max_size=2)) if form in ("flags", "both") else []
    least, most = {"edits": (2, 3), "flags": (0, 0)}.get(form, (1, 1))
    groups = st.sampled_from(TOGETHER).map(lambda d: [(k, repr(v)) for k, v in d.items()])
    one = {"together": groups, "rates": rates()}.get(form, EDITS.map(lambda edit: [edit]))
    edits: list[tuple[str, str | None]] = []
    for name, source in (
        e for es in draw(st.lists(one, min_size=least, max_size=most)) for e in es
    ):
        others = [other for other, _ in edits]
        # A setting in a group that is gone would be another mistake: one of the file's own.
        if not any(f"{name}.".startswith(f"{o}.") or o.startswith(f"{name}.") for o in others):
            edits.append((name, source))
    base = draw(st.sampled_from(sorted(BASES)))
    return Change(base, tuple(edits), tuple(argv), draw(st.booleans()))


# The tests


def run_campaign(door: Door, count: int, every: Sequence[dict] = ()) -> dict[Change, Answer]:
    """Tries changes until one is answered badly, and then looks for the smallest such."""
    tried: dict[Change, Answer] = {}

    def check(change):
        answer = tried[change] = door.ask(change)
        found = faults(change, answer, door.import_seconds)
        again = f"{change.file(door.data)}\n{change.flags}\n{answer}"
        assert not found, f"{'; '.join(found)}\n{again}"

    @hypothesis.seed(2026)
    @hypothesis.settings(max_examples=count, suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(changes())
    def each(change):
        check(change)

    for group in every:
        check(Change("tiny", tuple((name, repr(value)) for name, value in group.items())))
    each()
    return tried


@pytest.mark.parametrize("base", BASES)
def test_settings_that_nothing_was_done_to_make_a_run(door, base):
    answer = door.ask(Change(base))
    assert (answer.status, answer.valid, answer.compiled, answer.err) == (0, True, 0, ""), answer


def test_a_change_is_a_run_or_one_clear_line(door):
    tried = run_campaign(door, 24)
    assert len(tried) >= 18
    assert {answer.valid for answer in tried.values()} == {True, False}


@pytest.mark.slow
def test_a_campaign_of_bad_settings(door):
    tried = run_campaign(door, 500, TOGETHER)
    assert len(tried) >= 300
    valid = sum(answer.valid for answer in tried.values())
    seconds = [answer.seconds for answer in tried.values()]
    print(
        f"\n{len(tried)} changes: {valid} runs, {len(tried) - valid} refused; an answer took "
        f"{statistics.median(seconds):.2f} s in the median and {max(seconds):.2f} s at most, after "
        f"{door.import_seconds:.1f} s of imports"
    )


FAILING = {
    "a bad setting": ("seed", "-1", 2, "config.seed = -1"),
    "an error inside the file": ("seed", "1 / 0", 2, "ZeroDivisionError"),
    "a file that leaves": ("seed", "sys.exit(0)", 2, "SystemExit"),
    "a run that breaks": ("name", "'breaks'", 1, "it broke"),
    "a fault of the program": ("name", "'fault'", 1, "unexpected KeyError: 'fault'"),
}


@pytest.mark.parametrize("name", FAILING)
@pytest.mark.parametrize("debug", [False, True])
def test_only_debug_shows_a_traceback(door, name, debug):
    setting, source, status, message = FAILING[name]
    answer = door.ask(Change("tiny", ((setting, source),), ("--debug",) * debug))
    assert answer.status == status, answer
    assert ("Traceback" in answer.err) == debug
    *_, line = answer.err.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert debug or answer.err == line + "\n"


def test_an_interrupt_during_the_imports_says_nothing(tmp_path):
    argv = [sys.executable, "-m", "anytime_jax.main", "--config=none.py"]
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(argv, stdout=said, stderr=said)
        maps = pathlib.Path(f"/proc/{process.pid}/maps")
        while "jaxlib" not in maps.read_text():  # the slowest import has begun
            assert process.poll() is None
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(30) == 130
    assert (tmp_path / "said").read_text() == ""
