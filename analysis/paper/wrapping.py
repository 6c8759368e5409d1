"""Tokens in lines: wrapped at spaces to the width of the paper, and cut where they are too many."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from analysis.figure import Figure
from analysis.paper.texts import fitted, shown, token_signs, width_in
from analysis.paper.venues import Style

_PARTS = re.compile(r"\n+|[^\S\n]+|\S+")


@dataclass
class Piece:
    """A part of one token: `token` is its index; width in inches; `space` may hang over the end."""

    token: int
    text: str
    width: float
    space: bool = False


@dataclass
class Line:
    """One line: pieces from left to right, or a rule with its label, or a note on what was cut."""

    pieces: list[Piece] = field(default_factory=list)
    rule: str | None = None
    note: str = ""


def set_lines(figure: Figure, style: Style, room_in: float) -> list[Line]:
    """The tokens in lines of `room_in` inches, broken at spaces where there are any."""
    rules = {
        marker.x: marker.label
        for marker in figure.markers
        if marker.kind == "x" and not marker.selected
    }
    assert figure.x.values is not None
    lines, word = [Line()], list[Piece]()
    for token, (position, text) in enumerate(
        zip(figure.x.values.tolist(), figure.point_text, strict=True)
    ):
        if position in rules:
            _flush(lines, word, room_in, style)
            _end(lines)
            lines[-1].rule = shown(rules[position])
            lines.append(Line())
        for part in _PARTS.findall(text) or [""]:
            signs = token_signs(part, alone=not text.strip())
            space = part.isspace() and not signs.strip()
            if space:
                _flush(lines, word, room_in, style)
            word.append(Piece(token, signs, width_in(signs, style.font_pt, style.family), space))
            if space or part.startswith("\n"):
                _flush(lines, word, room_in, style)
            if part.startswith("\n"):
                _end(lines)
    _flush(lines, word, room_in, style)
    return lines if lines[-1].pieces or len(lines) == 1 else lines[:-1]


def _end(lines: list[Line]) -> None:
    if lines[-1].pieces:
        lines.append(Line())


def _flush(lines: list[Line], word: list[Piece], room_in: float, style: Style) -> None:
    """Set a word behind what is there, on a line of its own, or, where it is too wide, in parts."""
    width = sum(piece.width for piece in word)
    if not (word and word[0].space) and _used(lines[-1]) + width > room_in:
        _end(lines)
    for piece in word:
        while not piece.space and _used(lines[-1]) + piece.width > room_in:
            left = room_in - _used(lines[-1])
            head = fitted(piece.text, left, style.font_pt, style.family, "")
            if not head and lines[-1].pieces:
                lines.append(Line())
                continue
            head = head or piece.text[:1]
            lines[-1].pieces.append(
                Piece(piece.token, head, width_in(head, style.font_pt, style.family))
            )
            rest = piece.text[len(head) :]
            piece = Piece(piece.token, rest, width_in(rest, style.font_pt, style.family))
            if not rest:
                break
            lines.append(Line())
        if piece.text:
            lines[-1].pieces.append(piece)
    word.clear()


def _used(line: Line) -> float:
    return sum(piece.width for piece in line.pieces)


def cut(lines: list[Line], figure: Figure, room: int) -> list[Line]:
    """As many lines as there is room for, around the outlined token; what is left out is said."""
    room = max(3, room)
    if len(lines) <= room:
        return lines
    query = chosen(figure)
    anchor = next(
        (row for row, line in enumerate(lines) if any(p.token == query for p in line.pieces)), 0
    )
    start = min(max(0, anchor - room // 2), len(lines) - room)
    kept = lines[start : start + room]
    tokens = [[piece.token for piece in line.pieces if not piece.space] for line in lines]
    if start > 0:
        before = min((min(line) for line in tokens[start + 1 :] if line), default=0)
        kept[0] = Line(note=f"… {before:,} {_tokens(before)} before")
    if start + room < len(lines):
        last = max((max(line) for line in tokens[: start + room - 1] if line), default=-1)
        after = len(figure.point_text) - 1 - last
        kept[-1] = Line(note=f"… {after:,} {_tokens(after)} after")
    return kept


def _tokens(count: int) -> str:
    return "token" if count == 1 else "tokens"


def chosen(figure: Figure) -> int | None:
    """The index of the outlined token."""
    assert figure.x.values is not None
    for marker in figure.markers:
        if marker.kind == "x" and marker.selected:
            found = np.flatnonzero(figure.x.values == marker.x)
            return int(found[0]) if len(found) else None
    return None
