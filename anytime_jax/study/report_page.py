"""Report page of a study: one HTML page, with each figure and table as a file beside it."""

import csv
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from anytime_jax import plotting
from anytime_jax.atomic import atomic_write
from anytime_jax.study.report_items import ReportItem, Table

PAGE = "index.html"

_STYLE = """
body { font: 16px/1.5 Georgia, serif; color: #1a1a1a; background: #fff; max-width: 64rem;
       margin: 2rem auto; padding: 0 1.2rem; }
h1, h2 { font-family: Helvetica, Arial, sans-serif; line-height: 1.2; }
h2 { margin-top: 3rem; border-top: 1px solid #ccc; padding-top: 1.2rem; font-size: 1.25rem; }
img { max-width: 100%; display: block; margin: 1rem auto; }
.table { overflow-x: auto; }
table { border-collapse: collapse; font: 13px/1.4 Helvetica, Arial, sans-serif; margin: 1rem 0; }
th, td { padding: .25rem .7rem; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
th { border-bottom: 2px solid #444; }
td { border-bottom: 1px solid #e4e4e4; font-variant-numeric: tabular-nums; }
.note { background: #fff6e0; border-left: 4px solid #e69f00; padding: .4rem .8rem;
        font-size: 14px; }
.files, .about { color: #555; font: 13px Helvetica, Arial, sans-serif; }
nav { font: 14px Helvetica, Arial, sans-serif; columns: 2; }
"""


def write(
    directory: Path,
    title: str,
    summary: Sequence[str],
    items: Mapping[str, ReportItem],
    skipped: Sequence[str] = (),
    pdf: bool = False,
) -> list[Path]:
    """Writes the page and its items and returns the files, the page first.

    Files that an earlier page in `directory` links to are removed first: an item may no longer be
    made.

    Args:
      directory: existing directory.
      title: title of the page.
      summary: paragraphs under the title.
      items: by file name; tables are written as CSV, figures as PNG.
      skipped: names of items that could not be made.
      pdf: whether to write every figure as PDF too.
    """
    page = directory / PAGE
    if page.exists():
        for name in re.findall(r'href="(\w+\.(?:png|pdf|csv))"', page.read_text("utf-8")):
            (directory / name).unlink(missing_ok=True)
    files = {name: _write_item(directory, name, item, pdf) for name, item in items.items()}
    with atomic_write(page) as part:
        part.write_text(_page(title, summary, items, files, skipped), encoding="utf-8")
    return [page, *(file for each in files.values() for file in each)]


def _write_item(directory: Path, name: str, item: ReportItem, pdf: bool) -> list[Path]:
    table = directory / f"{name}.csv"
    with atomic_write(table) as part, part.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(item.table)
    if item.draw is None:
        return [table]
    figure, kinds = item.draw(), ("png", "pdf") if pdf else ("png",)
    return [*(plotting.save(figure, directory / f"{name}.{kind}") for kind in kinds), table]


def _page(
    title: str,
    summary: Sequence[str],
    items: Mapping[str, ReportItem],
    files: Mapping[str, Sequence[Path]],
    skipped: Sequence[str],
) -> str:
    links = "".join(f'<a href="#{k}">{escape(item.title)}</a><br>\n' for k, item in items.items())
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n",
        *[f'<p class="about">{escape(line)}</p>\n' for line in summary],
        f"<nav>\n{links}</nav>\n",
        *[_section(name, item, files[name]) for name, item in items.items()],
    ]
    if skipped:
        names = f"<p>{escape(', '.join(skipped))}</p>\n"
        parts.append(f"<h2>Skipped: runs not evaluated yet</h2>\n{names}")
    return "".join([*parts, "</body>\n</html>\n"])


def _section(name: str, item: ReportItem, files: Sequence[Path]) -> str:
    title = escape(item.title)
    image = f'<img src="{name}.png" alt="{title}">\n' if item.draw else ""
    notes = "".join(f'<p class="note">{escape(note)}</p>\n' for note in item.notes)
    links = " ".join(f'<a href="{x.name}">{x.suffix[1:].upper()}</a>' for x in files)
    return (
        f'<h2 id="{name}">{title}</h2>\n{image}<p>{escape(item.caption)}</p>\n'
        f'{notes}{_table(item.table)}<p class="files">{links}</p>\n'
    )


def _table(table: Table) -> str:
    header, *rows = table
    cells = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n" for row in rows
    )
    return f'<div class="table"><table>\n<tr>{cells}</tr>\n{body}</table></div>\n'
