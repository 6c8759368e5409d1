"""Token text as HTML: the renderer of the mark on a page of its own, as Plotly is of the others.

Nothing of a token is read as markup; what a reader sees of a token when pointing at it is its
position and its numbers.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterator

import numpy as np

from analysis.colours import REASONS, SELECTED, SHADED, Category
from analysis.figure import ColourScale, Figure
from analysis.words import number, visible

STYLE = f"""
.tokens {{ white-space: pre-wrap; overflow-wrap: anywhere; line-height: 1.75; }}
.tokens b {{ font-weight: normal; border-radius: 2px; padding: 0.1em 0; }}
.tokens .struck, .legend .struck {{ text-decoration: line-through; color: #5A5A5A; }}
.tokens .faded, .legend .faded {{ color: #8A8A8A; }}
.tokens .evidence, .legend .evidence
  {{ border-bottom: 3px solid {REASONS["evidence"].colour}; }}
.tokens .query {{ outline: 2px solid {SELECTED}; }}
.tokens hr {{ border: 0; border-top: 1px solid #8A8A8A; margin: 0.8em 0 0; }}
.tokens small {{ display: block; text-align: center; color: #5A5A5A; }}
.tokens b.sign {{ color: #5A5A5A; }}
.legend span {{ margin-right: 0.6em; padding: 0.05em 0.4em; border-radius: 3px; }}
"""
_SURROGATES = re.compile("[\ud800-\udfff]")
_LINES = re.compile(r"(\n+)")


def to_html(figure: Figure) -> str:
    """A block of HTML with its style: the legend, and one element per token with its shade."""
    assert figure.colour is not None and figure.x.values is not None
    arrays, scale = figure.arrays, figure.colour
    rules = {marker.x: marker for marker in figure.markers if marker.kind == "x"}
    flags = [name for name in ("struck", "faded", "evidence") if name in arrays]
    parts = [f"<style>{STYLE}</style>", _legend(figure), '<div class="tokens">']
    for token, (position, text) in enumerate(
        zip(figure.x.values.tolist(), figure.point_text, strict=True)
    ):
        rule = rules.get(position)
        if rule is not None and not rule.selected:
            parts.append(f"<hr><small>{_escaped(rule.label)}</small>")
        value = float(arrays["shade"][token])
        names = [name for name in flags if arrays[name][token]]
        if rule is not None and rule.selected:
            names.append("query")
        told = f"position {position:,}"
        if not math.isnan(value):
            told += f" · {scale.label} {number(value)}"
        parts.append(_token(text, names, shade(scale, value), told))
    return "".join([*parts, "</div>"])


def shade(scale: ColourScale, value: float) -> float:
    """How strong a token's ground is, from 0 to 1, for its number; 0 where it has none."""
    low, high = scale.range
    if math.isnan(value) or value <= low:
        return 0.0
    if scale.log:
        share = math.log(value / low) / math.log(high / low)
    else:
        share = ((min(value, high) - low) / (high - low)) ** scale.power
    return min(1.0, share)


def _token(text: str, names: list[str], strength: float, told: str) -> str:
    """A token, its line ends with their sign before them."""
    ground = _ground(strength)
    kind = f' class="{" ".join(names)}"' if names else ""
    shown = "".join(
        f"⏎{part}" if part.startswith("\n") else _escaped(part) for part in _LINES.split(text)
    )
    return f'<b{kind}{ground} title="{_escaped(told)}">{shown or "▫"}</b>'


def _ground(strength: float) -> str:
    if strength <= 0.01:
        return ""
    red, green, blue = (int(SHADED[place : place + 2], 16) for place in (1, 3, 5))
    return f' style="background:rgba({red},{green},{blue},{strength:.3f})"'


def _legend(figure: Figure) -> str:
    assert figure.colour is not None
    shades = "".join(
        f"<span{_ground(shade(figure.colour, place))}>{_escaped(text)}</span>"
        for place, text in figure.y.ticks
    )
    named = "".join(
        f'<span class="{category.key}">{_escaped(category.label)}</span>'
        for category in _occurring(figure)
    )
    return f'<p class="legend">{_escaped(figure.y.name)} {shades}{named}</p>'


def _occurring(figure: Figure) -> Iterator[Category]:
    for category in figure.categories:
        if np.any(figure.arrays.get(category.key, np.zeros(0))):
            yield category


def _escaped(text: str) -> str:
    """Text that HTML shows as it is, with signs for what it cannot hold or would obey."""
    spaced = visible(text, len(text) + 1).replace("␣", " ") if text else ""
    return html.escape(_SURROGATES.sub("\ufffd", spaced))
