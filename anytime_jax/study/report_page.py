"""Report page of a study: one HTML page, with each figure and table as a file beside it."""

import csv
import html
import re
from collections.abc import Sequence
from pathlib import Path

from anytime_jax import plotting
from anytime_jax.atomic import atomic_write
from anytime_jax.study.report_items import ReportItem
from anytime_jax.study.report_tables import Table

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
    out: Path,
    title: str,
    summary: Sequence[str],
    items: Sequence[ReportItem],
    skipped: Sequence[str] = (),
    pdf: bool = False,
) -> list[Path]:
    """Writes the page and its items and returns the files, the page first.

    Files that an earlier page in `out` links to are removed first: an item may no longer be made.

    Args:
      out: existing directory.
      title: title of the page.
      summary: paragraphs under the title.
      items: what to show; tables as CSV, figures as PNG.
      skipped: titles of items that could not be made.
      pdf: whether to write every figure as PDF too.
    """
    page = out / PAGE
    if page.exists():
        for name in re.findall(r'href="(\w+\.(?:png|pdf|csv))"', page.read_text("utf-8")):
            (out / name).unlink(missing_ok=True)
    files = [file for item in items for file in _write_item(out, item, pdf)]
    with atomic_write(page) as part:
        part.write_text(_page(title, summary, items, skipped, pdf), encoding="utf-8")
    return [page, *files]


def _write_item(out: Path, item: ReportItem, pdf: bool) -> list[Path]:
    files = [out / f"{item.name}.csv"]
    with atomic_write(files[0]) as part, part.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(item.content.table)
    if item.content.figure is not None:
        for kind in ("png", "pdf") if pdf else ("png",):
            files.append(plotting.save(item.content.figure, out / f"{item.name}.{kind}"))
    return files


def _page(
    title: str,
    summary: Sequence[str],
    items: Sequence[ReportItem],
    skipped: Sequence[str],
    pdf: bool,
) -> str:
    escape = html.escape
    links = "".join(f'<a href="#{item.name}">{escape(item.title)}</a><br>\n' for item in items)
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n",
        *[f'<p class="about">{escape(line)}</p>\n' for line in summary],
        f"<nav>\n{links}</nav>\n",
        *[_section(item, pdf) for item in items],
    ]
    if skipped:
        listed = "".join(f"<li>{escape(line)}</li>\n" for line in skipped)
        parts.append(f"<h2>Skipped: runs not evaluated yet</h2>\n<ul>\n{listed}</ul>\n")
    return "".join([*parts, "</body>\n</html>\n"])


def _section(item: ReportItem, pdf: bool) -> str:
    escape, name, content = html.escape, item.name, item.content
    kinds, image = ["csv"], ""
    if content.figure is not None:
        kinds = [*(["pdf"] if pdf else []), "png", "csv"]
        image = f'<img src="{name}.png" alt="{escape(item.title)}">\n'
    links = " ".join(f'<a href="{name}.{kind}">{kind.upper()}</a>' for kind in kinds)
    notes = "".join(f'<p class="note">{escape(note)}</p>\n' for note in content.notes)
    return (
        f'<h2 id="{name}">{escape(item.title)}</h2>\n{image}<p>{escape(content.caption)}</p>\n'
        f'{notes}{_table(content.table)}<p class="files">{links}</p>\n'
    )


def _table(table: Table) -> str:
    header, *rows = table
    cells = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>\n"
        for row in rows
    )
    return f'<div class="table"><table>\n<tr>{cells}</tr>\n{body}</table></div>\n'
