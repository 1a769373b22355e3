"""Report page of a study: one HTML page, with each figure and table as a file beside it."""

import csv
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from anytime_jax import plotting
from anytime_jax.atomic import atomic_write
from anytime_jax.study.paper_items import ReportItem

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

_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<h1>{title}</h1>
{summary}<nav>
{links}</nav>
{sections}{skipped}</body>
</html>
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
    names = f"<p>{escape(', '.join(skipped))}</p>\n"
    text = _PAGE.format(
        title=escape(title),
        style=_STYLE,
        summary="".join(f'<p class="about">{escape(line)}</p>\n' for line in summary),
        links="".join(f'<a href="#{k}">{escape(x.title)}</a><br>\n' for k, x in items.items()),
        sections="".join(_section(name, item, files[name]) for name, item in items.items()),
        skipped=f"<h2>Skipped: runs not evaluated yet</h2>\n{names}" if skipped else "",
    )
    with atomic_write(page) as part:
        part.write_text(text, encoding="utf-8")
    return [page, *(file for each in files.values() for file in each)]


def _write_item(directory: Path, name: str, item: ReportItem, pdf: bool) -> list[Path]:
    table = directory / f"{name}.csv"
    with atomic_write(table) as part, part.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(item.table)
    if item.draw is None:
        return [table]
    figure, kinds = item.draw(), ("png", "pdf") if pdf else ("png",)
    return [*(plotting.save(figure, directory / f"{name}.{kind}") for kind in kinds), table]


def _section(name: str, item: ReportItem, files: Sequence[Path]) -> str:
    title = escape(item.title)
    image = f'<img src="{name}.png" alt="{title}">\n' if item.draw else ""
    notes = "".join(f'<p class="note">{escape(note)}</p>\n' for note in item.notes)
    header, *rows = [[escape(cell) for cell in row] for row in item.table]
    cells = "".join(f"<th>{cell}</th>" for cell in header)
    body = "".join(f"<tr>{''.join(f'<td>{x}</td>' for x in row)}</tr>\n" for row in rows)
    links = " ".join(f'<a href="{x.name}">{x.suffix[1:].upper()}</a>' for x in files)
    return (
        f'<h2 id="{name}">{title}</h2>\n{image}<p>{escape(item.caption)}</p>\n{notes}'
        f'<div class="table"><table>\n<tr>{cells}</tr>\n{body}</table></div>\n'
        f'<p class="files">{links}</p>\n'
    )
