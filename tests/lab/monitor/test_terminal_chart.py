"""Line charts for terminals: what is drawn where, in braille and in ASCII."""

import io

import pytest
from rich.console import Console

from anytime_jax.lab.monitor.terminal_chart import Line, LineChart


def draw(lines, limits=(0.0, 1.0), width=30, height=9, encoding="ascii", **options):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    chart = LineChart("loss", lines, limits, lambda x: f"{x:g}x", height)
    Console(file=file, width=width, **options).print(chart)
    file.flush()
    return file.buffer.getvalue().decode(encoding).splitlines()


def test_chart_in_ascii():
    falling = Line("f25", [(1.0, 1.0), (2.0, 0.5), (4.0, 0.0)], "*")
    assert [line.rstrip() for line in draw([falling])] == [
        "loss   * f25",
        "    |*...",
        "0.76|    ....",
        "    |        ....*",
        "    |             ....",
        "0.24|                 ....",
        "    |                     ...*",
        "    ++-----------+-----------+",
        "     1x         2x          4x",
    ]


@pytest.mark.parametrize(("width", "encoding"), [(20, "ascii"), (79, "latin-1"), (200, "utf-8")])
def test_chart_fills_its_width_and_height_in_characters_of_the_terminal(encoding, width):
    lines = [Line("training", [(0.01 * i, 3 / i) for i in range(1, 500)]), Line("a", [(1, 2)], "*")]
    out = draw(lines, (0.0, 3.0), width, 12, encoding)
    assert len(out) == 12
    assert max(map(len, out)) == width
    has_braille = any("\u2800" < character <= "\u28ff" for line in out for character in line)
    assert has_braille == (encoding == "utf-8")


def test_points_outside_or_not_finite_are_left_out():
    inside = Line("in", [(1.0, 0.2), (4.0, 0.8)], "*")
    nan = Line("nan", [(2.0, float("nan")), (0.0, 0.5), (3.0, float("inf"))], "x")
    above = Line("out", [(1.0, 1e300), (4.0, 1e300)], "o")
    out = "\n".join(draw([above, nan, inside])[1:])
    assert out.count("*") == 2
    assert not {"x", "o"} & set(out.replace("1x", "").replace("2x", "").replace("4x", ""))


@pytest.mark.parametrize("points", [[], [(1.0, 0.5)], [(1.0, float("nan"))]])
def test_chart_of_no_or_one_point(points):
    assert draw([Line("f25", points, "*")])
