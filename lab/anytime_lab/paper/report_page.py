"""Report page of a study: one HTML page, and a file for each figure and table."""

import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from anytime_jax import figure_style
from anytime_jax.storage.atomic import atomic_write
from anytime_lab import html_page
from anytime_lab.paper.paper_items import ReportItem
from anytime_lab.table_text import to_csv, to_html

PAGE = "index.html"


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
    about = "".join(f'<p class="about">{escape(line)}</p>\n' for line in summary)
    links = "".join(f'<a href="#{k}">{escape(x.title)}</a><br>\n' for k, x in items.items())
    sections = [_section(name, item, files[name]) for name, item in items.items()]
    if skipped:
        names = f"<p>{escape(', '.join(skipped))}</p>\n"
        sections.append(f"<h2>Skipped: no such runs, or none evaluated yet</h2>\n{names}")
    body = f"{about}<nav>\n{links}</nav>\n{''.join(sections)}"
    text = html_page.make_page(title, body)
    with atomic_write(page) as part:
        part.write_text(text, encoding="utf-8")
    return [page, *(file for each in files.values() for file in each)]


def _write_item(directory: Path, name: str, item: ReportItem, pdf: bool) -> list[Path]:
    table = directory / f"{name}.csv"
    with atomic_write(table) as part:
        part.write_text(to_csv(item.table), encoding="utf-8", newline="")
    if item.draw is None:
        return [table]
    figure, kinds = item.draw(), ("png", "pdf") if pdf else ("png",)
    return [*(figure_style.save(figure, directory / f"{name}.{kind}") for kind in kinds), table]


def _section(name: str, item: ReportItem, files: Sequence[Path]) -> str:
    title = escape(item.title)
    image = f'<img src="{name}.png" alt="{title}">\n' if item.draw else ""
    notes = "".join(f'<p class="note">{escape(note)}</p>\n' for note in item.notes)
    links = " ".join(f'<a href="{x.name}">{x.suffix[1:].upper()}</a>' for x in files)
    return (
        f'<h2 id="{name}">{title}</h2>\n{image}<p>{escape(item.caption)}</p>\n{notes}'
        f'<div class="table">{to_html(item.table)}</div>\n'
        f'<p class="files">{links}</p>\n'
    )
