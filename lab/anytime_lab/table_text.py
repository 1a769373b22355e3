"""Text of a table for a Markdown page, an HTML page or a CSV file, each without the title."""

import csv
import io
from html import escape

from anytime_jax.tables import Table


def to_markdown(table: Table) -> str:
    """Returns the lines of a Markdown table."""
    header, *rows = table.text()
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def to_html(table: Table) -> str:
    """Returns the HTML of a table."""
    header, *rows = [[escape(cell) for cell in row] for row in table.text()]
    head = "".join(f'<th scope="col">{cell}</th>' for cell in header)
    body = "".join(f"<tr>{''.join(f'<td>{x}</td>' for x in row)}</tr>\n" for row in rows)
    return f"<table>\n<tr>{head}</tr>\n{body}</table>"


def to_csv(table: Table, line_end: str = "\r\n") -> str:
    """Returns the text of a CSV file."""
    file = io.StringIO()
    csv.writer(file, lineterminator=line_end).writerows(table.text())
    return file.getvalue()
