"""The table of the README's claim, against the published losses and the leaderboard's page.

`test_evidence_tables.py` recomputes the table of that page from the records.
"""

from doc_blocks import LABORATORY
from paths import REPOSITORY

from anytime_lab.paper import claim_figure
from anytime_lab.study import paper_losses


def read_rows():
    """The cells of the table's rows."""
    lines = (REPOSITORY / "README.md").read_text("utf-8").splitlines()
    rows = [[x.strip() for x in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    return [row for row in rows if len(row) == 7 and row[1] != "---"]


def read_leaderboard():
    """The cells of the first table of the leaderboard's page, by what is compared."""
    lines = (LABORATORY / "evidence/leaderboard.md").read_text("utf-8").splitlines()
    rows = [[x.strip() for x in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    return {(row[0], row[1]): [x.partition(",")[0] for x in row[2:5]] for row in rows}


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
    leaderboard = read_leaderboard()
    ours = [
        leaderboard[f"{optimizer}, constant, {weights}", f"{of_cosine}, cosine, {label}"]
        for optimizer, weights, of_cosine in (
            ("AdamW", "f25", "AdamW"),
            ("schedule-free AdamW", "x", "AdamW"),
            ("Muon", "f25", "Muon"),
        )
        for label in ("live", "f25")
    ]
    found = [[x for x in row[1:] if x] for row in rows]
    assert found == [*paper, *ours]


def test_figure_draws_every_gap(monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    right = claim_figure.draw(claim_figure.LEADERBOARD).axes[1]
    drawn = {tuple(line.get_ydata()) for line in right.lines}
    for model in ("150M", "300M"):
        assert tuple(paper_losses.differences(model)["constant"].values()) in drawn
    for column in ("", "_to_cosine_f25"):
        gaps = claim_figure.read_gaps(claim_figure.LEADERBOARD, column)
        assert tuple(gap for gap, _ in gaps.values()) in drawn
