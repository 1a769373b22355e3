"""The table of the README's claim, against the published losses and the leaderboard's records."""

import csv

from doc_blocks import LABORATORY
from paths import REPOSITORY

from anytime_lab.paper import claim_figure
from anytime_lab.study import paper_losses


def read_rows():
    """The cells of the table's rows."""
    lines = (REPOSITORY / "README.md").read_text("utf-8").splitlines()
    rows = [[x.strip() for x in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    return [row for row in rows if len(row) == 7 and row[1] != "---"]


def find_muon():
    with claim_figure.LEADERBOARD.open(newline="", encoding="utf-8") as file:
        wanted = {"optimizer": "muon", "schedule": "constant", "read_out": "f25"}
        (row,) = [
            x for x in csv.DictReader(file) if wanted.items() <= x.items() and x["seeds_1x"] == "4"
        ]
    return [(row[f"gap_to_own_{m}x"], row[f"half_width_95_to_own_{m}x"]) for m in (1, 2, 4)]


def with_intervals(gaps):
    return [f"{float(gap):+.3f} ± {float(half):.3f}" for gap, half in gaps]


def test_numbers_are_those_of_the_records(monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    head, *rows = read_rows()
    assert head[1:] == [f"{2**i}x" for i in range(6)]
    paper = [
        [
            f"{x:+.3f}".replace("-", "−")
            for x in paper_losses.differences(model)["constant"].values()
        ]
        for model in ("150M", "300M")
    ]
    file = LABORATORY / "evidence/leaderboard.csv"
    ours = [
        with_intervals(claim_figure.read_gaps(file, column).values())
        for column in ("", "_to_cosine_f25")
    ]
    found = [[x for x in row[1:] if x] for row in rows]
    assert found == [*paper, *ours, with_intervals(find_muon())]


def test_figure_draws_every_gap(monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    right = claim_figure.draw(claim_figure.LEADERBOARD).axes[1]
    drawn = {tuple(line.get_ydata()) for line in right.lines}
    for model in ("150M", "300M"):
        assert tuple(paper_losses.differences(model)["constant"].values()) in drawn
    for column in ("", "_to_cosine_f25"):
        gaps = claim_figure.read_gaps(claim_figure.LEADERBOARD, column)
        assert tuple(gap for gap, _ in gaps.values()) in drawn
