"""Fuzzing of the settings: any change of them trains, or is refused in one clear line.

Hypothesis changes settings of a run, in its file or on its command line, and calls the training
command with them, up to the place where the first update would be compiled.
"""

import dataclasses
import itertools
import re

import hypothesis
import pytest
import small_run
from hypothesis import strategies as st
from run_command import run_command

from anytime_jax.commands import train
from anytime_jax.config.fields import flatten
from anytime_jax.distributed import jax_settings
from anytime_jax.training import run_data
from anytime_jax.training import start as start_lib

MAX_MESSAGE = 600  # characters


# Values, as Python source


def words(text):
    return text.split()


WRONG_TYPES = words("""
    None True False '' '1' [] [1] (1,) {} {'a':1} set() {1} b'8' object() len 1j ...
    np.float32(1.5) np.int64(8) np.float64(0.5) np.nan np.array([1,2]) (lambda:1) ConfigDict()
    config_dict.placeholder(int) config_dict.required_placeholder(int) float('8') Unprintable()
""")
NUMBERS = words("""
    0 -1 1 2 3 5 7 8 12 16 17 1000000 -1.5 0.5 1.5 -0.0 math.nan math.inf -math.inf 5e-324 1e-46
    1e-30 1e39 1e308 2**31-1 2**31 2**32 2**63 -2**63 10**30 10**400 10**5000
""")
NAMES = [repr(name) for name in (
    *("", " ", ".", "..", "\u2603", "\u202e", "a.b", "a\nb", "\x1b[31mred", "\0", "a\0b", "\udcff"),
    *("x" * 300, "x" * 5000, "/", "file", "full", "full ", "file/run", "gone/run", "/proc/run"),
    *("full/run", "a/b/c", "~", "none", "Olmo", "float16", "olmo2", "xla", "cudnn", "scan"),
    *("spikes", "constant", "cosine", "wsd", "$x^", "[red]", "{name}", "%s"),
)]  # fmt: skip
POINTS = [
    *("", "4", "4x", "0x", "4X", "-1x", "0.5x", "1e-3x", "1e9x", "1e99x", "infx", "²x"),
    *("0 steps", "1 step", "3 steps", "-3 steps", "0.1 steps", "٣ steps", "1__0 steps"),
    *("1e99 tokens", "3.3B tokens", "3 B steps", "nan steps", "4x+", "never", "horizon", "Never"),
    *("3 steps\n", "\x1b[0m4x", "9" * 5000 + " steps"),
]
AVERAGES = words("""
    () (0,) (math.nan,) (1e308,) (10**400,) (None,) (True,) ('f25',25.0) ('last',) ('ema1.0',)
    ('ema-1',) ('f',) ('F25',) ('f1e3',) ('uniform1.5',) ('f٣',) ((25,),) 'f25' (np.float32(25),)
    (b'f25',) ('x'*5000,) (Unprintable(),) [6.25,'ema0.9'] ('f'+'9'*400,) {25} {'f':25}
""")
SCHEDULES = {
    "constant": {},
    "inverse_sqrt": {"alpha": 7.0},
    "power": {"gamma": 0.5, "alpha": 7.0},
    "cosine": {"horizon": "1x", "floor": 0.1},
    "linear": {"horizon": "1x", "floor": 0.1},
    "wsd": {"horizon": "1x", "floor": 0.1, "shape": "linear"},
}
# Settings whose allowed values depend on each other.
COMBINED = [
    *({"model.width": w, "model.heads": h} for w, h in ((10, 5), (12, 4), (18, 3), (2, 1), (1, 1))),
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
    *({"stop": s, "data.repeat": r} for s in ("never", "100x", "2e9 steps") for r in (True, False)),
    *({"chinchilla_tokens": c, "stop": "3 steps"} for c in (1, 10**9, 10**18, 10**400)),
    *({"data.path": p, "data.builtin_megabytes": m}
      for p in ("gone", "builtin", "file", "full", "a\0b", "") for m in (0, 0.1, 1e9)),
    {"data.path": "builtin", "data.builtin_megabytes": 0.1, "run_dir": "file"},
    {"data.path": "builtin", "data.builtin_megabytes": 0.1, "model.layers": 10**6},
    {"data.path": "builtin", "data.builtin_megabytes": 0.1, "mesh.fsdp": 8, "model.width": 20},
    *({"model.layers": n, "model.layer_loop": how}
      for n in (1, 100, 10**4, 2**31 - 1) for how in ("scan", "unroll")),
    *({"model.width": 2**20, "model.heads": h} for h in (1, 2**10)),
    *({"model.attention": a, "model.dtype": d}
      for a in ("cudnn", "xla", "plain") for d in ("bfloat16", "float32")),
    *({"checkpoint.keep_every": e, "checkpoint.every": e}
      for e in ("0 steps", "1 step", "2e9 steps")),
]  # fmt: skip
# Values of overrides on the command line.
WORDS = [
    *("", "0", "-1", "nan", "inf", "1e400", "1e-320", "2147483648", "3", "2.5", "abc", "None"),
    *(
        "True",
        "yes",
        "(1,",
        "(1,)",
        "[1]",
        "{}",
        "'x'",
        '"',
        "0x10",
        " 8",
        "٣",
        "1_000",
        "=",
        "a=b",
    ),
    *("\n", "\x1b[0m", "\udcff", "9" * 5000, "x" * 5000, "__import__('os')"),
]

# What is required of an answer

POINTS_IN_A_RUN = {"stop", "eval.every", "checkpoint.every", "checkpoint.keep_every", "log.every"}
POINTS_IN_A_RUN |= {"schedule.warmup", "schedule.horizon"}
# Other settings that a message may name when this one was changed: points, whose place in updates
# it moves, the windows that a run needs, and the directory of a state that is too large.
RELATED = {
    "chinchilla_tokens": POINTS_IN_A_RUN,
    "batch_size": POINTS_IN_A_RUN | {"microbatches"},
    **dict.fromkeys(("model", "model.length"), POINTS_IN_A_RUN | {"eval.tokens"}),
    "microbatches": {"batch_size"},
    "data.repeat": {"stop"},
    "data.path": {"eval.tokens", "stop"},
    "data.builtin_megabytes": {"eval.tokens", "stop"},
    "model.layers": {"run_dir"},
    "model.width": {"run_dir"},
    "model.mlp_width": {"run_dir"},
    "model.embedding_rows": {"run_dir", "model.vocab_size"},
    "averages": {"run_dir", "model"},
}


def is_named(name, line):
    """Whether a line names a setting in full or as a quoted word, or the group it is in."""
    group, _, last = name.rpartition(".")
    forms = [f"config.{name}", f"'{last}'", f"{name} = "]
    forms += [f"config.{group}"] * bool(group)
    cut = len(last) > 20 and repr(last)[1:20] in line  # messages leave out the middle of long words
    return cut or any(re.search(rf"(?<![\w.]){re.escape(form)}(?!\w)", line) for form in forms)


# Changes

FLAT = flatten(small_run.settings("run", "data").to_dict())
GROUPS = sorted({name.partition(".")[0] for name in FLAT if "." in name})


@dataclasses.dataclass(frozen=True)
class Change:
    """Edits of the file (source by name, None omits the setting), and words of the command line.

    `ConfigDict` checks types in most files, which are `typed`.
    """

    edits: tuple = ()
    overrides: tuple = ()
    typed: bool = False

    def file(self, data):
        lines = ["pass"]
        for name, value in self.edits:
            place = "config" + "".join(f"[{key!r}]" for key in name.split("."))
            lines.append(f"del {place}" if value is None else f"{place} = {value}")
        unlocked = "config.unlocked()" if self.typed else "config.ignore_type(), config.unlocked()"
        edits = "\n        ".join(lines)
        return (
            "import math, small_run\nimport numpy as np\n"
            "from ml_collections import ConfigDict, config_dict\n"
            "class Unprintable:\n    def __repr__(self):\n        raise RuntimeError\n\n"
            f"def get_config():\n    config = small_run.settings('run', {str(data)!r})\n"
            f"    with {unlocked}:\n        {edits}\n    return config\n"
        )

    @property
    def names(self):
        overridden = {x.removeprefix("--config.").split("=")[0] for x in self.overrides}
        return overridden | {name for name, _ in self.edits}


def of_type(*types):
    return [name for name, value in FLAT.items() if type(value) in types]


def typos(name):
    group, dot, last = name.rpartition(".")
    words = [last[1:], last[:-1], last + "s", last.upper(), last[1::-1] + last[2:], last * 20]
    return [group + dot + word for word in words if word and word != last]


ODD_NAMES = (
    *("\u2603", "__class__", "get", "model.get", "data.\u2603", "mesh.\x1b[0m", "1", "model.-1"),
    *("x" * 300, "a b", " ", "", "\n", "model. "),
)
MISSPELT = [typo for name in FLAT for typo in typos(name)]
EDITS = st.one_of(
    st.tuples(st.sampled_from([*FLAT, *GROUPS]), st.sampled_from(WRONG_TYPES)),
    st.tuples(st.sampled_from(of_type(int, float)), st.sampled_from(NUMBERS)),
    st.tuples(st.sampled_from(of_type(str)), st.sampled_from(NAMES)),
    st.tuples(
        st.sampled_from(sorted(POINTS_IN_A_RUN & set(FLAT))), st.sampled_from(POINTS).map(repr)
    ),
    st.tuples(st.just("averages"), st.sampled_from(AVERAGES)),
    st.tuples(st.sampled_from([*FLAT, *GROUPS]), st.none()),
    st.tuples(st.sampled_from([*MISSPELT, *ODD_NAMES]), st.sampled_from(WRONG_TYPES + NUMBERS)),
)


@st.composite
def schedules(draw):
    """A whole learning rate, one of its settings changed, and a stop."""
    kind = draw(st.sampled_from(list(SCHEDULES)))
    common = {"kind": kind, "peak": 1e-2, "warmup": "3 steps", "warmup_init": 0.1}
    source = {name: repr(value) for name, value in {**common, **SCHEDULES[kind]}.items()}
    name = draw(st.sampled_from(list(source)))
    is_point = name in ("warmup", "horizon")
    source[name] = draw(
        st.sampled_from(list(map(repr, POINTS)) if is_point else NUMBERS + WRONG_TYPES)
    )
    stop = draw(st.sampled_from(["1x", "2x", "horizon", "never", "1x+", "0.5x"]))
    group = "ConfigDict({" + ", ".join(f"{k!r}: {v}" for k, v in source.items()) + "})"
    return [("schedule", group), ("stop", repr(stop))]


@st.composite
def overrides(draw):
    """A setting on the command line."""
    name = draw(st.sampled_from(list(FLAT)))
    written = draw(st.sampled_from([name] * 6 + [*typos(name), name.partition(".")[0]]))
    fitting = POINTS if name in POINTS_IN_A_RUN else AVERAGES if name == "averages" else WORDS
    return f"--config.{written}={draw(st.sampled_from(fitting) | st.sampled_from(WORDS))}"


@st.composite
def changes(draw):
    """Changed settings of a run, in its file and on its command line."""
    combined = st.sampled_from(COMBINED).map(lambda d: [(k, repr(v)) for k, v in d.items()])
    drawn = draw(st.lists(EDITS.map(lambda x: [x]) | combined | schedules(), max_size=2))
    edits = []
    for name, source in itertools.chain(*drawn):
        # An edit inside a group that another edit replaces is an error of the file's own.
        if not any(f"{name}.".startswith(f"{x}.") or x.startswith(f"{name}.") for x, _ in edits):
            edits.append((name, source))
    return Change(tuple(edits), tuple(draw(st.lists(overrides(), max_size=2))), draw(st.booleans()))


# Tests


@pytest.fixture
def answer(dataset, tmp_path, monkeypatch, capsys, compilations):
    """Calls the command with a change; returns whether it would train, or its line of error."""
    folders = itertools.count()
    monkeypatch.setattr(jax_settings, "configure", lambda: None)  # of the whole process

    def begin(*unused, **unused_too):
        raise SystemExit(0)

    monkeypatch.setattr(start_lib, "print_summary", begin)
    monkeypatch.setattr(run_data, "prepare", begin)

    def start(change):
        folder = tmp_path / str(next(folders))
        (folder / "full").mkdir(parents=True)
        (folder / "full" / "notes.txt").write_text("mine")
        (folder / "file").write_text("mine")
        (folder / "mine.py").write_text(change.file(dataset.path), "utf-8")
        monkeypatch.chdir(folder)
        capsys.readouterr()
        with compilations() as compiled:
            try:
                status = run_command(train, ["--config=mine.py", *change.overrides])
            except SystemExit as end:
                status = end.code
            assert compiled() == 0
        line = capsys.readouterr().err
        if status == 0:
            assert line == ""
            return True
        assert status == 2, line
        names = {x.relative_to(folder).as_posix() for x in folder.rglob("*")}
        assert names == {"full", "full/notes.txt", "file", "mine.py"}
        return line

    return start


def check(answer, change):
    line = answer(change)
    if line is True:
        return True
    assert re.fullmatch(rf"error: .{{1,{MAX_MESSAGE}}}\n", line)
    assert line.strip().isprintable()
    names = change.names.union(*(RELATED.get(name, ()) for name in change.names))
    assert any(is_named(name, line) for name in names), line
    return False


@pytest.mark.parametrize(
    ("first", "count"), [((), 16), pytest.param(COMBINED, 500, marks=pytest.mark.slow)]
)
def test_changed_settings_train_or_are_refused_in_one_line(answer, first, count):
    """A wrong answer is shrunk to the smallest such change."""
    found = [check(answer, Change())]
    for values in first:
        check(answer, Change(tuple((name, repr(value)) for name, value in values.items())))

    @hypothesis.seed(2026)
    @hypothesis.settings(max_examples=count, suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(changes())
    def check_any(change):
        found.append(check(answer, change))

    check_any()
    assert set(found) == {True, False}
