"""Generated parts of the documentation: the import graph, the package tree, the settings.

`python docs/generate.py` rewrites them in place; `tests/docs/test_generated.py` fails where they
differ from the code.
"""

import ast
import pathlib
import sys
import textwrap
import tomllib

import grimp

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

PACKAGE = REPOSITORY / "anytime_jax"
_WIDTH = 100


def layers() -> list[list[str]]:
    """Returns the packages of each layer, the highest first, as pyproject.toml states them."""
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))
    contract = settings["tool"]["importlinter"]["contracts"][0]
    return [layer.split(" : ") for layer in contract["layers"]]


def import_graph() -> str:
    """Returns a Mermaid diagram of the packages' imports, without those that others imply."""
    imports = _package_imports()
    reach = {name: _reachable(name, imports) for name in imports}
    lines = ["```mermaid", "graph TD"]
    for name in (name for layer in layers() for name in layer):
        for target in sorted(imports[name]):
            if not any(target in reach[other] for other in imports[name] - {target}):
                lines.append(f"  {_node(name)} --> {_node(target)}")
    return "\n".join([*lines, "```"])


def package_tree() -> str:
    """Returns a line for each package and top-level module, the highest layer first."""
    lines = ["```", "anytime_jax/"]
    for name in (name for layer in layers() for name in layer):
        folder = PACKAGE / name
        file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
        docstring = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
        summary = " ".join(docstring.partition("\n\n")[0].split()).removesuffix(".")
        shown = f"{name}/" if folder.is_dir() else f"{name}.py"
        first, *rest = textwrap.wrap(summary, _WIDTH - 18)
        lines += [f"  {shown:15} {first}", *(" " * 18 + line for line in rest)]
    return "\n".join([*lines, "```"])


def settings_tables() -> str:
    """Returns a table for each group of settings, from their declarations."""
    from anytime_jax.config import settings_reader
    from anytime_jax.config.run_settings import Settings, all_settings

    declared, titles, lines = all_settings(), settings_reader.meanings(Settings), []
    for group in dict.fromkeys(name.rpartition(".")[0] for name in declared):
        lines += ["", f"## {group}: {titles[group]}" if group else "## Top level", ""]
        lines += [_SETTINGS_HEAD]
        for name, setting in declared.items():
            if name.rpartition(".")[0] != group:
                continue
            kinds = f" (of {', '.join(setting.kinds)})" if setting.kinds else ""
            cells = (
                f"`{name.rpartition('.')[2]}`",
                setting.type_text,
                setting.default_text and f"`{setting.default_text}`",
                setting.meaning + kinds,
                "yes" if setting.facts.identity else "no",
                setting.facts.branch if setting.facts.identity else "free",
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines[1:])


_SETTINGS_HEAD = """\
| setting | type | default | meaning | identity | branch |
| --- | --- | --- | --- | --- | --- |"""
BLOCKS = {
    ("docs/architecture.md", "import graph"): import_graph,
    ("docs/architecture.md", "package tree"): package_tree,
    ("docs/settings.md", "settings"): settings_tables,
}


def with_block(page: str, name: str, block: str) -> str:
    """Returns a page with another block between `<!-- name -->` and `<!-- end -->`."""
    begin, end = f"<!-- {name} -->\n", "\n<!-- end -->"
    before, *others = page.split(begin)
    if len(others) != 1 or end not in others[0]:
        raise ValueError(f"{len(others)} blocks from {begin.strip()} to {end.strip()}")
    after = others[0].partition(end)[2]
    return f"{before}{begin}{block}{end}{after}"


def _node(name: str) -> str:
    """A node of the diagram; Mermaid reserves some words, so its identifier has a suffix."""
    label = name if (PACKAGE / name).is_dir() else f"{name}.py"
    return f'{name}_["{label}"]'


def _package_imports() -> dict[str, set[str]]:
    """The packages that each package imports."""
    graph = grimp.build_graph("anytime_jax", exclude_type_checking_imports=True)
    names = {name for layer in layers() for name in layer}
    imports: dict[str, set[str]] = {name: set() for name in names}
    for module in graph.modules:
        for target in graph.find_modules_directly_imported_by(module):
            ends = (*(f"{x}.".split(".")[1] for x in (module, target)),)
            if ends[0] != ends[1] and set(ends) <= names:
                imports[ends[0]].add(ends[1])
    return imports


def _reachable(name: str, imports: dict[str, set[str]]) -> set[str]:
    """The packages that a package imports, directly or through others."""
    return imports[name].union(*(_reachable(target, imports) for target in imports[name]))


if __name__ == "__main__":
    for (page, name), make in BLOCKS.items():
        path = REPOSITORY / page
        content = with_block(path.read_text("utf-8"), name, make())
        path.write_text(content, "utf-8")
