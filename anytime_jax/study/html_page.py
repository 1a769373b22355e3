"""All exhibits of a study on one page of HTML, and each as files beside it."""

import csv
import html
import re
from collections.abc import Sequence
from pathlib import Path

from anytime_jax import plotting
from anytime_jax.atomic import atomic_write
from anytime_jax.study.report_item import Exhibit, Table

FILE = "index.html"

_LOOK = """
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
    about: Sequence[str],
    exhibits: Sequence[Exhibit],
    left_out: Sequence[str],
) -> list[Path]:
    """Writes every exhibit as PNG, PDF and CSV, and the page.

    Args:
      out: directory, which is there.
      title: of the page.
      about: what it was made from, a line each.
      exhibits: what to show.
      left_out: what could not be shown, and why.

    Returns:
      the files, the page first.
    """
    page = out / FILE
    if page.exists():  # an exhibit of an earlier report may be in this one no more
        for name in re.findall(r'href="(\w+\.(?:png|pdf|csv))"', page.read_text("utf-8")):
            (out / name).unlink(missing_ok=True)
    files = []
    for exhibit in exhibits:
        if exhibit.figure is not None:
            files += [
                plotting.save(exhibit.figure, out / f"{exhibit.stem}.{kind}")
                for kind in ("png", "pdf")
            ]
        files.append(_write_csv(out / f"{exhibit.stem}.csv", exhibit.table))
    with atomic_write(page) as part:
        part.write_text(_page(title, about, exhibits, left_out), encoding="utf-8")
    return [page, *files]


def _write_csv(path: Path, table: Table) -> Path:
    with atomic_write(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(table)
    return path


def _page(
    title: str, about: Sequence[str], exhibits: Sequence[Exhibit], left_out: Sequence[str]
) -> str:
    say = html.escape
    links = "".join(f'<a href="#{x.stem}">{say(x.title)}</a><br>\n' for x in exhibits)
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{say(title)}</title>\n<style>{_LOOK}</style>\n</head>\n<body>\n"
        f"<h1>{say(title)}</h1>\n",
        *[f'<p class="about">{say(line)}</p>\n' for line in about],
        f"<nav>\n{links}</nav>\n",
        *[_section(exhibit) for exhibit in exhibits],
    ]
    if left_out:
        items = "".join(f"<li>{say(line)}</li>\n" for line in left_out)
        parts.append(f"<h2>Left out</h2>\n<ul>\n{items}</ul>\n")
    return "".join([*parts, "</body>\n</html>\n"])


def _section(exhibit: Exhibit) -> str:
    say, stem = html.escape, exhibit.stem
    files = f'<a href="{stem}.csv">CSV</a>'
    picture = ""
    if exhibit.figure is not None:
        files = f'<a href="{stem}.pdf">PDF</a> <a href="{stem}.png">PNG</a> ' + files
        picture = f'<img src="{stem}.png" alt="{say(exhibit.title)}">\n'
    notes = "".join(f'<p class="note">{say(note)}</p>\n' for note in exhibit.notes)
    return (
        f'<h2 id="{stem}">{say(exhibit.title)}</h2>\n{picture}<p>{say(exhibit.caption)}</p>\n'
        f'{notes}{_table(exhibit.table)}<p class="files">{files}</p>\n'
    )


def _table(table: Table) -> str:
    head, *rows = table
    cells = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>\n"
        for row in rows
    )
    return f'<div class="table"><table>\n<tr>{cells}</tr>\n{body}</table></div>\n'
