"""Token text as a figure: the same tokens, shades and signs on paper, as HTML and as a table."""

from __future__ import annotations

import io
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pypdf
import pytest
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_rgb

from analysis.attention import text_view
from analysis.colours import SELECTED
from analysis.eviction import eviction_text
from analysis.export import export
from analysis.figure import Axis, ColourScale, Figure
from analysis.paper.renderer import render, settings, to_matplotlib
from analysis.paper.texts import token_signs, width_in
from analysis.paper.tokens import BOX
from analysis.paper.venues import Style, style_for
from analysis.paper.wrapping import set_lines
from analysis.plotly_renderer import to_plotly
from analysis.text_figures import attention_figure, eviction_figure
from cache_store.reader import Capture
from tests.analysis.figures import HOSTILE, TOKENS, figure, hostile
from tests.analysis.replaying import by_hand
from tests.synthetic import Synthetic

SET = ["The", " pass", "key", " at", " position", " 9", " is", "⏎⏎", "40", "71", "␣␣␣", "ok."]


def drawn_axes(shown: Figure, style: Style) -> Any:
    with settings(style):
        return to_matplotlib(shown, style).axes[0]


def collections(axes: Any, kind: type) -> list[Any]:
    return [drawn for drawn in axes.collections if isinstance(drawn, kind)]


def set_text(shown: Figure, style: Style, room_in: float) -> list[str]:
    return [
        "".join(piece.text for piece in line.pieces) for line in set_lines(shown, style, room_in)
    ]


def test_tokens_are_set_in_order_with_line_ends_and_lone_spaces_as_signs() -> None:
    lines = set_text(figure("text"), style_for(), 5.4)
    assert lines == ["The passkey at position 9 is⏎⏎", "", "4071␣␣␣ok."]  # "" is the rule
    rules = [line.rule for line in set_lines(figure("text"), style_for(), 5.4) if line.rule]
    assert rules == ["response"]


@pytest.mark.parametrize("room_in", [0.35, 0.8, 1.3, 3.0])
def test_no_line_is_wider_than_the_column_but_for_the_spaces_at_its_end(room_in: float) -> None:
    style, words = style_for(), "passkey " * 7 + "antidisestablishmentarianism " + "文字" * 30
    pieces = re.findall(r" ?\S{1,4}", words)
    shown = figure(
        "text",
        arrays={"shade": np.zeros(len(pieces))},
        x=Axis("position", np.arange(len(pieces))),
        point_text=tuple(pieces),
        markers=(),
    )
    lines = set_lines(shown, style, room_in)
    for line in lines:
        while line.pieces and line.pieces[-1].space:
            line.pieces.pop()
        wide = sum(width_in(part.text, style.font_pt, style.family) for part in line.pieces)
        assert wide <= room_in + 1e-9
    joined = "".join(part.text for line in lines for part in line.pieces)
    assert joined.replace(" ", "") == words.replace(" ", "")
    order = [part.token for line in lines for part in line.pieces]
    assert order == sorted(order) and set(order) == set(range(len(pieces)))


def test_words_break_at_spaces_where_there_are_any() -> None:
    lines = set_text(figure("text"), style_for(), width_in("The passkey at", 8, "serif") + 0.01)
    assert lines[0].rstrip() == "The passkey at"


@pytest.mark.parametrize(
    ("part", "alone", "signs"),
    [
        ("", False, "▫"),
        ("\n", False, "⏎"),
        ("\n" * 40, True, "⏎×40"),
        ("  ", False, "  "),
        ("  ", True, "␣␣"),
        ("\t", False, "⇥"),
        ("a\x00\ud800", False, "a␀\ufffd"),
    ],
)
def test_what_cannot_be_seen_is_a_sign(part: str, alone: bool, signs: str) -> None:
    assert token_signs(part, alone) == signs


class Spans(HTMLParser):
    """Each token of the HTML: its text, classes, title and the strength of its ground."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens: list[dict[str, Any]] = []
        self.names: set[str] = set()
        self._within = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        if tag == "b":
            told = dict(attrs)
            ground = re.search(r",([\d.]+)\)$", told.get("style") or "")
            self.tokens.append(
                {
                    "text": "",
                    "classes": (told.get("class") or "").split(),
                    "title": told["title"],
                    "strength": float(ground[1]) if ground else 0.0,
                }
            )
            self._within = True

    def handle_endtag(self, tag: str) -> None:
        self._within = self._within and tag != "b"

    def handle_data(self, data: str) -> None:
        if self._within:
            self.tokens[-1]["text"] += data


def spans(shown: Figure) -> Spans:
    parser = Spans()
    parser.feed(export(shown, "html").decode())
    return parser


def ground_colours(axes: Any) -> list[tuple[float, ...]]:
    """Of the tokens that have one, from left to right and line to line."""
    boxes = next(drawn for drawn in collections(axes, PolyCollection) if drawn.get_facecolor().size)
    return [tuple(colour[:3]) for colour in boxes.get_facecolor()]


def test_paper_and_html_show_the_same_tokens_shades_and_flags() -> None:
    shown, style = figure("text"), style_for()
    tokens = spans(shown).tokens
    assert [token["text"].replace("⏎", "") for token in tokens] == list(TOKENS)
    axes = drawn_axes(shown, style)
    words = [text.get_text() for text in axes.texts if text.get_text() != "response"]
    assert "".join(words).replace(" ", "") == "".join(SET).replace(" ", "")
    strengths = [token["strength"] for token in tokens]
    np.testing.assert_allclose(strengths, [0, *np.arange(0.1, 0.9, 0.1), 1.0, 0, 0], atol=1e-3)
    blue = np.array(to_rgb("#6AABF3"))
    expected = [1 - strength + strength * blue for strength in strengths if strength]
    np.testing.assert_allclose(ground_colours(axes), expected, atol=0.01)
    flagged = {
        name: [n for n, token in enumerate(tokens) if name in token["classes"]]
        for name in ("struck", "faded", "evidence", "query")
    }
    assert flagged == {"struck": [1, 2], "faded": [10, 11], "evidence": [8, 9], "query": [9]}
    assert tokens[3]["title"] == "position 43 · kept by 0.09" and "·" not in tokens[11]["title"]


def segments(axes: Any, order: int) -> list[np.ndarray]:
    lines = (drawn for drawn in collections(axes, LineCollection) if drawn.get_zorder() == order)
    return [line for drawn in lines for line in drawn.get_segments()]


def test_struck_evidence_and_chosen_tokens_carry_lines_not_only_colour() -> None:
    style = style_for()
    axes = drawn_axes(figure("text"), style)
    evidence, strikes = segments(axes, 1), segments(axes, 4)
    assert len(strikes) == 2 and len(evidence) == 2  # " pass", "key" and "40", "71"
    base = next(text.get_position()[1] for text in axes.texts if text.get_text() == "4071")
    assert all(base < line[0, 1] < base + BOX[1] * style.font_pt for line in evidence)
    outline = next(
        drawn for drawn in collections(axes, PolyCollection) if not drawn.get_facecolor().size
    )
    assert tuple(outline.get_edgecolor()[0][:3]) == to_rgb(SELECTED)


@pytest.mark.parametrize("colours", ["as on screen", "viridis", "cividis", "grey"])
def test_grounds_darken_with_the_number_and_letters_stay_readable(colours: str) -> None:
    numbers = np.linspace(0.02, 1, 40)
    shown = figure(
        "text",
        arrays={"shade": numbers},
        x=Axis("position", np.arange(40)),
        point_text=("x\n",) * 40,
        markers=(),
    )
    axes = drawn_axes(shown, style_for(colour_map=colours))
    grey = np.array(ground_colours(axes)) @ (0.299, 0.587, 0.114)
    assert np.diff(grey).max() < 0.01 and grey[0] - grey[-1] > 0.25
    letters = [text.get_color() for text in axes.texts]
    for ground, letter in zip(ground_colours(axes), letters, strict=True):
        light, dark = sorted((luminance(ground), luminance(to_rgb(letter))), reverse=True)
        assert (light + 0.05) / (dark + 0.05) > 3.5


def luminance(colour: tuple[float, ...]) -> float:
    """WCAG 2's relative luminance, by its formula."""
    parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def test_a_text_that_is_too_long_is_cut_around_its_outlined_token() -> None:
    many = 1500
    shown = figure(
        "text",
        arrays={"shade": np.zeros(many)},
        x=Axis("position", np.arange(many)),
        point_text=tuple(f" w{n}" for n in range(many)),
        markers=figure("text", x=Axis("p", np.arange(12))).markers[1:],
    )
    style = style_for("icml", height_in=1.5)
    found = pypdf.PdfReader(io.BytesIO(render(shown, style, "pdf"))).pages[0]
    assert float(found.mediabox.height) / 72 == pytest.approx(1.5, abs=0.01)
    text = found.extract_text()
    after = int(re.search(r"… ([\d,]+) tokens after", text)[1].replace(",", ""))  # type: ignore[index]
    last = max(int(word) for word in re.findall(r"w(\d+)", text))
    assert "w49" in text and last + after == many - 1
    whole = pypdf.PdfReader(io.BytesIO(render(shown, style_for("icml"), "pdf"))).pages[0]
    assert float(whole.mediabox.height) / 72 <= 9.0


@pytest.mark.parametrize("legend", ["above", "right", "below", "inside", "none"])
@pytest.mark.parametrize("venue", ["icml", "nature-wide"])
def test_a_text_is_whole_where_no_height_is_asked_for(venue: str, legend: str) -> None:
    page = pypdf.PdfReader(
        io.BytesIO(render(figure("text"), style_for(venue, legend=legend), "pdf"))
    ).pages[0]
    assert " before" not in page.extract_text() and "ok." in page.extract_text()


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("form", ["pdf", "svg", "html", "csv", "parquet", "figure", "provenance"])
def test_hostile_tokens_stay_text_in_every_format(text: str, form: str) -> None:
    content = export(hostile("text", text), form, style_for(width_in=2.0))
    assert content
    if form in ("svg", "html"):
        assert b"<script>alert" not in content
    if form == "html":
        assert not spans(hostile("text", text)).names & {"script", "img", "iframe"}


def test_words_of_several_tokens_are_found_in_the_pdf() -> None:
    page = pypdf.PdfReader(io.BytesIO(render(figure("text"), style_for(), "pdf"))).pages[0]
    text = page.extract_text()
    assert "position 9 is" in text and "4071" in text


def test_the_table_has_a_row_for_each_token() -> None:
    table = figure("text").table()
    assert table.columns.tolist() == [
        "position",
        "token",
        "kept by",
        "evicted",
        "later",
        "evidence",
    ]
    assert table["token"].tolist() == list(TOKENS)
    assert table["evicted"].tolist() == [n in (1, 2) for n in range(12)]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"point_text": ("one",)}, "1 tokens for 12 shades"),
        ({"x": Axis("position")}, "needs its position"),
        ({"colour": None}, "a text needs a colour scale"),
        ({"colour": ColourScale("a", (0, 1), power=-1.0)}, "the power -1"),
    ],
)
def test_parts_that_do_not_fit_are_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        figure("text", **changes)


def test_plotly_leaves_a_text_to_the_page() -> None:
    with pytest.raises(ValueError, match="is a text, which Plotly does not draw"):
        to_plotly(figure("text"))
    with pytest.raises(ValueError, match="needs a text"):
        figure("centred", colour=ColourScale("a", (0, 1), power=0.5))


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = Synthetic(prompt_length=20, response_length=6, window=4)
    opened = Capture.open(made.write(tmp_path_factory.mktemp("text")))
    yield opened
    opened.close()


def test_the_attention_of_a_step_becomes_a_figure(capture: Capture) -> None:
    view = text_view(capture, 0, 1, 3)  # its query is position 22
    shown = attention_figure(view, "Step 3", hide_sink=True, sink=4)
    row = view.rows[3 - int(view.steps[0])].astype(np.float32)
    np.testing.assert_array_equal(shown.arrays["shade"][4:23], row[4:23])
    assert np.isnan(shown.arrays["shade"][[0, 3, 23, 25]]).all()
    assert shown.arrays["faded"].tolist() == [0] * 23 + [1] * 3
    assert shown.point_text == view.pieces and shown.colour and shown.colour.range == (0, 0.5)
    assert [(m.x, m.selected) for m in shown.markers if m.selected] == [(22, True)]
    assert {m.x: m.label for m in shown.markers if not m.selected}[20] == "response"
    assert shown.provenance["run"] == capture.info.id and shown.provenance["step"] == 3
    logs = attention_figure(view, "Step 3", log=True)
    assert logs.colour and logs.colour.log and logs.colour.range == (1e-3, 1.0)


def test_the_text_under_a_policy_becomes_a_figure(capture: Capture) -> None:
    """Two layers of two KV heads; the first loses positions 0-4 at prefill, 5-9 after step 3."""
    evicted_at = np.full((2, 2, 26), 7)
    evicted_at[0, 0, :5], evicted_at[0, 0, 5:10] = 0, 3
    replayed = by_hand(evicted_at, 20, group=2)
    early, late = (
        eviction_figure(eviction_text(capture, replayed, 0, 0, step, evidence=[(4, 7)]), "t")
        for step in (1, 3)
    )
    assert early.arrays["struck"].tolist() == [1] * 5 + [0] * 21
    assert late.arrays["struck"].tolist() == [1] * 10 + [0] * 16
    np.testing.assert_allclose(late.arrays["shade"][:23], [0.75] * 10 + [1.0] * 13)
    assert np.isnan(late.arrays["shade"][23:]).all() and late.arrays["faded"].sum() == 3
    assert np.flatnonzero(late.arrays["evidence"]).tolist() == [4, 5, 6]
    assert late.provenance["policies"] == [replayed.choice]


def test_the_readme_can_say_that_shades_are_those_of_the_screen() -> None:
    """The page paints with the constants of its own script."""
    from analysis.text_figures import FULL_SHADE, LOG_FLOOR

    code = (Path(__file__).parents[2] / "pages/parts/token_looks.js").read_text("utf-8")
    assert float(re.search(r"FULL_SHADE = ([\d.e-]+)", code)[1]) == FULL_SHADE  # type: ignore[index]
    assert float(re.search(r"LOG_FLOOR = ([\d.e-]+)", code)[1]) == LOG_FLOOR  # type: ignore[index]
