"""Tables as text of a page or a CSV file."""

from anytime_jax.tables import Table, numbers
from anytime_lab.table_text import to_csv, to_html, to_markdown


def test_one_table_is_markdown_html_and_csv():
    table = Table("", ["run", *numbers("loss", format="+.2f"), *numbers("steps", format=",")])
    table.add_row("a<b, c", 0.125, 1000)
    table.add_row("d", None, "-")
    lines = ["| run | loss | steps |", "| --- | --- | --- |", "| a<b, c | +0.12 | 1,000 |"]
    assert to_markdown(table).splitlines() == [*lines, "| d |  | - |"]
    assert to_csv(table).splitlines() == ["run,loss,steps", '"a<b, c",+0.12,"1,000"', "d,,-"]
    assert "<td>a&lt;b, c</td><td>+0.12</td><td>1,000</td>" in to_html(table)
    assert "<td>d</td><td></td><td>-</td>" in to_html(table)
