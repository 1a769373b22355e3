"""A file imports only from lower floors: the house of docs/architecture.md, as a table."""

import ast
import pathlib

import pytest

PACKAGE = pathlib.Path(__file__).resolve().parents[1] / "anytime_jax"

# A file may import files of a lower rank only. A name that ends in "/" stands for a folder, whose
# files may import each other as long as no circle arises (a test below).
RANKS = {
    # Floor 0: mathematics, on the two files that everything stands on.
    "__init__": 0,
    "errors": 0,
    "checks": 0,
    "units": 0,
    "schedules": 2,
    "averaging": 2,
    "clock": 2,
    "guard": 2,
    "settings": 2,
    "atomic": 2,
    "sharding": 2,
    "hosts": 2,
    "model": 4,
    "flops": 5,
    "mixing": 3,
    "product": 2,
    "attention": 3,
    "loss": 3,
    # Floor 1: configuration.
    "sections": 9,
    "config": 10,
    # Floor 2: state and I/O.
    "identity": 20,
    "checksums": 20,
    "integrity": 21,
    "data/": 20,
    "records": 20,
    "optimizer": 20,
    "step": 21,
    "progress": 20,
    "checkpoint": 22,
    "retention": 21,
    "metrics": 22,
    # Floor 3: a run.
    "branch": 30,
    "evaluator": 30,
    "weights": 30,
    "formats/": 30,
    "verifiers/": 0,
    "initial": 31,
    "memory": 30,
    "sampling": 30,
    "scoring": 30,
    "search": 31,
    "preflight": 31,
    "loop": 32,
    "train": 33,
    "fleet": 34,
    # Beside a run: what others read and write.
    # Floor 4: doors.
    "command_line": 38,
    "compilation": 38,
    "saved_run": 39,
    "opening": 39,
    "config_file": 39,
    "prepare": 40,
    "jobs": 40,
    "slurm": 41,
    "sweep": 42,
    "train_fleet": 42,
    "export": 40,
    "generate": 40,
    "runs": 40,
    "layouts": 40,
    "evaluate": 40,
    "readout": 40,
    "main": 41,
    # Beside the house: under the doors, and held apart from the rest by ONLY.
    "theory/": 40,
    "study/": 39,
}

# What a door may stand on, beside its room.
DOORS = {"command_line", "compilation", "config_file"}

# Rooms that may import these and no others, whatever their rank.
ONLY = {
    "theory/": {
        *("errors", "checks", "schedules", "averaging", "mixing", "settings", "atomic"),
        *DOORS,
    },
    "study/": {
        *("errors", "checks", "units", "clock", "settings", "atomic"),
        *("records", "identity", "command_line"),
    },
}

# The only rooms that know these packages.
CONFINED = {
    "flax": {"model"},
    "orbax": {"checkpoint", "integrity", "hosts"},
    "ml_collections": {"config_file", "prepare", "sweep", "export", "generate", "runs"},
    "tensorflow": set(),
    "clu": set(),
    "pickle": set(),
}


def module_of(file, root):
    """The dotted name of a file inside the package, without the package: `data.sources`."""
    parts = file.relative_to(root).with_suffix("").parts
    if parts[-1] == "__init__" and len(parts) > 1:
        parts = parts[:-1]
    return ".".join(parts)


def room_of(module):
    """The entry of the table that holds a module."""
    head = module.partition(".")[0]
    return head if head in RANKS else f"{head}/"


def modules_in(root):
    return {module_of(file, root): file for file in sorted(root.rglob("*.py"))}


def imported(file, root, modules):
    """Our own modules and the other packages that a file imports, at any depth in its code."""
    package = root.name
    here = [package, *file.relative_to(root).parent.parts]
    ours, others = set(), set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{stem}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            head, _, rest = name.partition(".")
            if head != package:
                others.add(head)
                continue
            # `from anytime_jax.data.tokens import x`: the longest prefix that is a module.
            while rest and rest not in modules:
                rest = rest.rpartition(".")[0]
            ours.add(rest or "__init__")
    return ours, others


def faults(root):
    """Every edge of the import graph that the table forbids, in words."""
    modules = modules_in(root)
    found = []
    for module, file in modules.items():
        room = room_of(module)
        if room not in RANKS:
            found.append(
                f"{module}.py has no place: add it to RANKS in tests/test_layering.py and to the "
                "picture in docs/architecture.md"
            )
            continue
        ours, others = imported(file, root, modules)
        for target in sorted(ours - {module, "__init__"}):
            other = room_of(target)
            if other == room and room.endswith("/"):
                continue
            if room in ONLY and other not in ONLY[room]:
                found.append(f"{module} imports {target}: it may import {sorted(ONLY[room])} only")
            elif other not in RANKS or RANKS[other] >= RANKS[room]:
                found.append(f"{module} imports {target}, which is not on a lower floor")
        for name in sorted(others & set(CONFINED)):
            if room not in CONFINED[name]:
                homes = ", ".join(sorted(CONFINED[name])) or "no file"
                found.append(f"{module} imports {name}, which is kept to {homes}")
    return found


def circles(root):
    """The modules that can reach themselves."""
    modules = modules_in(root)
    edges = {m: imported(file, root, modules)[0] - {m} for m, file in modules.items()}
    for middle in edges:  # transitive closure
        for targets in edges.values():
            if middle in targets:
                targets |= edges[middle]
    return sorted(m for m, targets in edges.items() if m in targets)


def test_every_file_imports_from_lower_floors_only():
    assert len(modules_in(PACKAGE)) > 10
    assert faults(PACKAGE) == []


def test_there_are_no_circles():
    assert circles(PACKAGE) == []


def test_nothing_is_imported_by_name_at_run_time():
    """An import that the tests above cannot read."""
    for module, file in modules_in(PACKAGE).items():
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                assert not name.endswith(("import_module", "__import__")), f"{module}: {name}"


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({"schedules": "from anytime_jax import config"}, "schedules imports config, which is not"),
        ({"clock": "import anytime_jax.schedules"}, "clock imports schedules, which is not on a"),
        ({"step": "def f():\n    from anytime_jax.train import x"}, "step imports train"),
        ({"data/tokens": "from ..step import y"}, "data.tokens imports step"),
        ({"config": "from .data import tokens", "data/tokens": ""}, "config imports data.tokens"),
        ({"extra": ""}, r"extra.py has no place: add it to RANKS"),
        ({"theory/risk": "from anytime_jax import clock"}, "theory.risk imports clock: it may"),
        ({"study/plots": "from anytime_jax import train"}, "study.plots imports train: it may"),
        ({"step": "from flax import linen"}, "step imports flax, which is kept to model"),
    ],
)
def test_the_rule_sees(files, fault, tmp_path):
    root = tmp_path / "anytime_jax"
    everything = {"__init__": "", "config": "", "schedules": "", "train": "", "clock": "", **files}
    for name, text in {"step": "", "data/__init__": "", **everything}.items():
        file = root / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    found = faults(root)
    assert len(found) == 1
    assert found[0].startswith(fault)


def test_the_rule_sees_a_circle_inside_a_folder(tmp_path):
    root = tmp_path / "anytime_jax"
    (root / "data").mkdir(parents=True)
    (root / "data" / "a.py").write_text("from anytime_jax.data import b")
    (root / "data" / "b.py").write_text("from anytime_jax.data.c import x")
    (root / "data" / "c.py").write_text("from . import a")
    assert circles(root) == ["data.a", "data.b", "data.c"]
