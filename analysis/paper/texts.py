"""Texts on paper: shown as they are, on one line or wrapped, never read as TeX and never too long.

What an XML file or a font cannot hold (control characters, lone surrogates) becomes a visible sign.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from functools import lru_cache

from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextToPath

# Shipped with matplotlib, so that a file is the same on every machine; STIX is cut like Times.
FONTS = {"sans": ("DejaVu Sans",), "serif": ("STIXGeneral", "DejaVu Sans")}

_SIGNS = str.maketrans(
    {code: chr(0x2400 + code) for code in range(32)}
    | {127: "␡", 0xFFFE: "\ufffd", 0xFFFF: "\ufffd"}
    | dict.fromkeys(range(0x80, 0xA0), "\ufffd")
    | dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)], "◌")
)
_SURROGATES = re.compile("[\ud800-\udfff]")


def shown(text: str, limit: int = 300) -> str:
    """One line of at most `limit` characters that every format can hold."""
    line = _SURROGATES.sub("\ufffd", " ".join(str(text).split()).translate(_SIGNS))
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def token_signs(part: str, alone: bool = False) -> str:
    """A part of a token, all space or none, as it is set: line ends and tabs as signs, and spaces
    too where they are `alone`; ▫ for a token that holds no character of its own."""
    if not part:
        return "▫"
    if part.startswith("\n"):
        return "⏎" * len(part) if len(part) < 5 else f"⏎×{len(part)}"
    if part.isspace():
        return "".join({"\t": "⇥", "\r": "␍"}.get(sign, "␣" if alone else " ") for sign in part)
    return _SURROGATES.sub("\ufffd", part.translate(_SIGNS))


@lru_cache(maxsize=4096)
def width_in(text: str, size_pt: float, family: str) -> float:
    """How wide a line of `text` is set, in inches."""
    if not text:
        return 0.0
    prop = FontProperties(family=list(FONTS[family]), size=size_pt)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        return float(TextToPath().get_text_width_height_descent(text, prop, False)[0]) / 72


def fitted(text: str, room_in: float, size_pt: float, family: str, end: str = "…") -> str:
    """As much of the text as fits on one line, with `end` where it was cut."""
    line = shown(text)
    if width_in(line, size_pt, family) <= room_in:
        return line
    low, high = 0, len(line)
    while low < high:
        middle = (low + high + 1) // 2
        if width_in(line[:middle].rstrip() + end, size_pt, family) <= room_in:
            low = middle
        else:
            high = middle - 1
    return line[:low].rstrip() + end


def wrapped(text: str, room_in: float, size_pt: float, family: str, lines: int = 3) -> str:
    """The text over at most `lines` lines; a word longer than a line is cut."""
    words, set_lines = shown(text).split(" "), [""]
    for number, word in enumerate(words):
        longer = f"{set_lines[-1]} {word}".strip()
        if width_in(longer, size_pt, family) <= room_in or not set_lines[-1]:
            set_lines[-1] = longer
        elif len(set_lines) < lines:
            set_lines.append(word)
        else:
            set_lines[-1] = " ".join([set_lines[-1], *words[number:]])
            break
    return "\n".join(fitted(line, room_in, size_pt, family) for line in set_lines)


def widest_in(texts: Sequence[str], size_pt: float, family: str) -> float:
    """The width of the longest of some lines, in inches."""
    return max((width_in(text, size_pt, family) for text in texts), default=0.0)


def number(value: float) -> str:
    """A tick: thousands separated, as many digits as it needs, powers of ten from 10⁶ and 10⁻⁴."""
    if value == 0:
        return "0"
    if not 1e-3 <= abs(value) < 1e6:
        mantissa, exponent = f"{value:.2e}".split("e")
        mantissa = mantissa.rstrip("0").rstrip(".")
        power = "10" + str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
        sign = "−" if mantissa.startswith("-") else ""
        factor = mantissa.lstrip("-")
        return f"{sign}{power}" if factor == "1" else f"{sign}{factor}·{power}"
    return f"{value:,.10g}".replace("-", "−")
