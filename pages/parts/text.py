"""Words and numbers as the reader sees them; what a reader typed is never read as Markdown."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_PUNCTUATION = re.compile(r"([\\`*_{}\[\]()<>#+\-.!|~$&:^=\"'])")
# Streamlit replaces :shortcodes: and lone arrows after Markdown is parsed, so a backslash does not
# hold them off; a zero-width space inside them does.
_REPLACED_LATER = re.compile(r"(:)(?=\S)|(?<!\S)([<~>-])(?=(?:[->=]|->)(?!\S))")
_ZERO_WIDTH = "\u200b"


def plain(text: object, limit: int | None = None) -> str:
    """`text` for a place that reads Markdown (labels, captions, toasts): shown as it was typed.

    One line; with `limit`, at most that many characters and an ellipsis."""
    line = shorten(text, limit)
    return _PUNCTUATION.sub(r"\\\1", _REPLACED_LATER.sub(rf"\g<0>{_ZERO_WIDTH}", line))


def shorten(text: object, limit: int | None = None) -> str:
    """One line of at most `limit` characters, for places that show text as it is."""
    line = " ".join(str(text).split())
    if limit is not None and len(line) > limit:
        line = line[: limit - 1].rstrip() + "…"
    return line


def number(value: float) -> str:
    """Thousands separated; at most three significant digits below one thousand."""
    if value != value:
        return "–"
    if float(value).is_integer() or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def size(count: float) -> str:
    """Bytes as B, kB, MB or GB (powers of 1,000)."""
    for unit in ("B", "kB", "MB"):
        if abs(count) < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{number(float(f'{count:.3g}'))} GB"


def duration(seconds: float | None) -> str:
    """Seconds as "8 ms", "8 s", "2 min 10 s" or "1 h 5 min"; "" when unknown."""
    if seconds is None or seconds != seconds:
        return ""
    if seconds < 0.095:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.2g} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def clock(when: datetime, now: datetime | None = None) -> str:
    """The time of day, with the date when it was not today (UTC)."""
    when = when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)
    now = now or datetime.now(UTC)
    return f"{when:%H:%M} UTC" if when.date() == now.date() else f"{when:%Y-%m-%d %H:%M} UTC"


def some(count: int, noun: str) -> str:
    """'1 run', '2,000 runs'."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
