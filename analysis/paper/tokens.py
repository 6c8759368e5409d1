"""Token text on paper: words set as text and wrapped to the width, with what each token carries.

A token keeps its spaces; line ends, tabs and tokens of nothing but spaces are shown as signs.
"""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_hex, to_rgb
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis.colours import REASONS, SELECTED
from analysis.figure import Figure
from analysis.paper.cells import colour_map, norm_of
from analysis.paper.texts import fitted, shown, width_in
from analysis.paper.venues import INK, Style
from analysis.paper.wrapping import Piece, chosen, cut, set_lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINE = 1.7  # from line to line, in letter sizes
BOX = (0.98, 0.34)  # of a token's ground above and below its line, in letter sizes
TALLEST_IN = 8.0  # a longer text is cut around its outlined token, unless a height is asked for
LEAST_SHADE = 0.01  # below it a token has no ground
WHITE = "#FFFFFF"
LATER, GONE_ON_LIGHT, GONE_ON_DARK = "#A3A3A3", "#5A5A5A", "#D5D5D5"


def text_height_in(figure: Figure, style: Style, room_in: float) -> float:
    """How high the tokens are set over a width, at most TALLEST_IN."""
    lines = len(set_lines(figure, style, room_in))
    return min(TALLEST_IN, (lines * LINE + 1.2) * style.font_pt / 72)


def legend_names(figure: Figure) -> list[str]:
    """The shades, and what of the text occurs: struck, later and evidence tokens."""
    names = [shown(text) for _, text in figure.y.ticks]
    if names and figure.y.name:
        names[0] = shown(f"{figure.y.name} {names[0]}")
    return [*names, *(shown(category.label) for category in _occurring(figure))]


def _occurring(figure: Figure) -> list[Any]:
    return [
        category
        for category in figure.categories
        if np.any(figure.arrays.get(category.key, np.zeros(0)))
    ]


def legend_entries(figure: Figure, style: Style) -> list[Any]:
    """What `draw_legend` takes, in the order of `legend_names`."""
    assert figure.colour is not None
    names = legend_names(figure)
    shades = _grounds(figure, style, np.array([place for place, _ in figure.y.ticks], np.float32))
    drawn: list[Any] = [
        Patch(facecolor=shade or "white", edgecolor=INK, linewidth=0.3, label=name)
        for shade, name in zip(shades, names, strict=False)
    ]
    looks: dict[str, dict[str, Any]] = {
        "struck": {"color": GONE_ON_LIGHT, "linewidth": 0.8},
        "faded": {"color": LATER, "linewidth": 2.4},
        "evidence": {"color": _evidence(style), "linewidth": 1.6},
    }
    for category, name in zip(_occurring(figure), names[len(drawn) :], strict=True):
        drawn.append(Line2D([], [], label=name, **looks[category.key]))
    return drawn


def draw_tokens(axes: Axes, figure: Figure, style: Style, room_in: tuple[float, float]) -> None:
    """Set the tokens into axes that are `room_in` (width, height) inches; cut where it is full."""
    width, height = room_in
    size = style.font_pt
    lines = set_lines(figure, style, width)
    lines = cut(lines, figure, int((height * 72 / size - 0.3) / LINE))
    axes.set_axis_off()
    axes.set_xlim(0, width * 72)
    axes.set_ylim(height * 72, 0)
    grounds = _grounds(figure, style, figure.arrays["shade"])
    ink = _Ink(figure, grounds)
    boxes: list[tuple[str, np.ndarray]] = []
    outlines: list[np.ndarray] = []
    strikes: list[tuple[str, Any]] = []
    marks: list[Any] = []
    query = chosen(figure)
    for row, line in enumerate(lines):
        base = (row * LINE + 1.2) * size
        if line.rule is not None:
            _draw_rule(axes, line.rule, base, width, style)
        if line.note:
            _say(axes, 0, base, line.note, LATER, style)
        at = 0.0
        for run in _runs(line.pieces, ink):
            _say(axes, at, base, "".join(piece.text for piece in run), ink[run[0].token], style)
            at += 72 * sum(piece.width for piece in run)
        for token, left, right in _spans(line.pieces):
            box = _box(left, right, base - BOX[0] * size, base + BOX[1] * size)
            if ground := grounds[token]:
                boxes.append((ground, box))
            if token == query:
                outlines.append(box)
            if ink.struck[token]:
                strikes.append((ink[token], _level(left, right, base - 0.3 * size)))
            if ink.evidence[token]:
                marks.append(_level(left, right, base + 0.28 * size))
    shades = PolyCollection(
        [box for _, box in boxes], facecolors=[colour for colour, _ in boxes], linewidths=0
    )
    strike = LineCollection(
        [line for _, line in strikes],
        colors=[colour for colour, _ in strikes],
        linewidths=size * 0.09,
    )
    _add(axes, shades, 0)
    _add(axes, LineCollection(marks, colors=_evidence(style), linewidths=size * 0.17), 1)
    _add(axes, strike, 4)
    outline = INK if style.colour_map == "grey" else SELECTED
    _add(axes, PolyCollection(outlines, facecolors="none", edgecolors=outline, linewidths=1.0), 5)


def _grounds(figure: Figure, style: Style, numbers: np.ndarray) -> list[str]:
    """The colour behind a token for each number; "" where it is too small or missing."""
    scale = figure.colour
    assert scale is not None
    mapping, norm = colour_map(scale, style), norm_of(scale)
    shares = np.asarray(norm(np.nan_to_num(np.asarray(numbers, np.float64), nan=-1.0)))
    shares = np.where(np.isnan(numbers) | (numbers < 0), 0.0, shares)
    return [to_hex(mapping(float(share))) if share > LEAST_SHADE else "" for share in shares]


class _Ink:
    """The colour of each token's letters: readable on its ground, paler where it is gone."""

    def __init__(self, figure: Figure, grounds: list[str]) -> None:
        nothing = np.zeros(len(grounds), np.uint8)
        self.struck, self.evidence, self._faded = (
            figure.arrays.get(name, nothing) for name in ("struck", "evidence", "faded")
        )
        self._dark = [
            bool(ground) and _contrast(ground, INK) < _contrast(ground, WHITE) for ground in grounds
        ]

    def __getitem__(self, token: int) -> str:
        if self.struck[token]:
            return GONE_ON_DARK if self._dark[token] else GONE_ON_LIGHT
        if self._faded[token]:
            return LATER
        return WHITE if self._dark[token] else INK


def _contrast(first: str, second: str) -> float:
    """The contrast ratio of two colours as WCAG defines it, from 1 to 21."""

    def luminance(colour: str) -> float:
        parts = np.array(to_rgb(colour))
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ (0.2126, 0.7152, 0.0722))

    dark, light = sorted((luminance(first), luminance(second)))
    return (light + 0.05) / (dark + 0.05)


def _runs(pieces: list[Piece], ink: _Ink) -> list[list[Piece]]:
    """Pieces that are set as one text, so that words of several tokens are found as words.

    A change of ink ends it, and so does writing from right to left, which would swap the tokens.
    """
    runs: list[list[Piece]] = []
    for piece in pieces:
        joined = runs and ink[runs[-1][-1].token] == ink[piece.token]
        if joined and not (_leftwards(runs[-1][-1].text) or _leftwards(piece.text)):
            runs[-1].append(piece)
        else:
            runs.append([piece])
    return runs


def _leftwards(text: str) -> bool:
    return any(unicodedata.bidirectional(sign) in ("R", "AL") for sign in text)


def _evidence(style: Style) -> str:
    return INK if style.colour_map == "grey" else REASONS["evidence"].colour


def _spans(pieces: list[Piece]) -> list[tuple[int, float, float]]:
    """Token, left and right, in points, of each token on a line; its end hides hanging spaces."""
    spans: list[tuple[int, float, float]] = []
    at, shown = 0.0, max((n for n, piece in enumerate(pieces) if not piece.space), default=-1)
    for piece in pieces[: shown + 1]:
        right = at + 72 * piece.width
        if spans and spans[-1][0] == piece.token:
            spans[-1] = (piece.token, spans[-1][1], right)
        else:
            spans.append((piece.token, at, right))
        at = right
    return spans


def _level(left: float, right: float, y: float) -> list[tuple[float, float]]:
    return [(left, y), (right, y)]


def _box(left: float, right: float, top: float, bottom: float) -> np.ndarray:
    return np.array([(left, top), (right, top), (right, bottom), (left, bottom)])


def _say(axes: Axes, x: float, y: float, text: str, colour: str, style: Style) -> None:
    looks: dict[str, Any] = {"fontsize": style.font_pt, "color": colour, "zorder": 3}
    axes.text(x, y, text, va="baseline", ha="left", clip_on=False, **looks).set_in_layout(False)


def _draw_rule(axes: Axes, name: str, base: float, width: float, style: Style) -> None:
    """A line across with the name of what follows in its middle."""
    size = style.font_pt * 0.85
    name = fitted(name, width * 0.6, size, style.family)
    half, middle = width_in(name, size, style.family) * 36 + size * 0.5, width * 36
    y = base - 0.3 * style.font_pt
    sides = [[(0, y), (middle - half, y)], [(middle + half, y), (width * 72, y)]]
    axes.add_collection(LineCollection(sides, colors=LATER, linewidths=0.6), autolim=False)
    axes.text(middle, base, name, ha="center", fontsize=size, color=INK).set_in_layout(False)


def _add(axes: Axes, drawn: Any, order: int) -> None:
    if len(drawn.get_paths()):
        drawn.set_zorder(order)
        drawn.set_clip_on(False)
        axes.add_collection(drawn, autolim=False)
