"""The parts of the paper's gap to the cosine, and the page that has them."""

import pytest
from paths import REPOSITORY

from anytime_lab.page_block import with_block
from anytime_lab.paper import published_gaps
from anytime_lab.study import paper_losses

PAGE = REPOSITORY / "lab" / "evidence" / "paper.md"


def at(model, multiple):
    (gap,) = [
        gap
        for gap in published_gaps.published_gaps()
        if (gap.losses.model, gap.losses.multiple) == (model, multiple)
    ]
    return gap


def test_parts_sum_to_the_gap():
    for gap in published_gaps.published_gaps():
        assert gap.trunk + gap.average == pytest.approx(gap.whole)
        expected = paper_losses.differences(gap.losses.model)["constant"][gap.losses.multiple]
        assert gap.whole == pytest.approx(expected)


def test_tokens_are_interpolated_in_their_log():
    """A third of the way down from the cosine at 8x to the one at 16x, and at the ends."""
    envelope = paper_losses.losses()["300M"]["cosine"]
    loss = (2 * envelope[8.0] + envelope[16.0]) / 3
    losses = at("300M", 16.0).losses
    ratio = published_gaps._token_ratio
    assert ratio(losses, loss) == pytest.approx(16 / (8 * 2 ** (1 / 3)))
    assert ratio(losses, losses.cosine) == pytest.approx(1)
    assert ratio(losses, losses.cosine - 1e-3) is None
    assert at("300M", 1.0).constant_tokens is None


def test_page_has_the_table_and_the_figure(tmp_path, monkeypatch):
    monkeypatch.setattr(
        published_gaps.figure_style, "save", lambda figure, path: saved.append(path)
    )
    saved = []
    page = tmp_path / "paper.md"
    page.write_text(with_block(PAGE.read_text("utf-8"), "published gaps", ""), "utf-8")
    assert published_gaps.main([f"--page={page}"]) == 0
    assert page.read_text("utf-8") == PAGE.read_text("utf-8")
    assert saved == [tmp_path / "paper_gaps.png"]
    assert (PAGE.parent / "paper_gaps.png").exists()


def test_figure_has_a_panel_for_each_model():
    figure = published_gaps.draw(published_gaps.published_gaps())
    assert [axes.get_title() for axes in figure.axes] == ["150M", "300M"]
