"""Words, numbers and escaping; expected values by hand."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from pages.parts import text


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, "0"), (12.0, "12"), (0.012345, "0.0123"), (2041, "2,041"), (float("nan"), "–")],
)
def test_numbers_have_three_digits_and_thousands(value: float, expected: str) -> None:
    assert text.number(value) == expected


@pytest.mark.parametrize(
    ("count", "expected"),
    [(0, "0 B"), (999, "999 B"), (38_400_000, "38.4 MB"), (999_600, "1 MB"), (4.07e9, "4.07 GB")],
)
def test_sizes_in_powers_of_a_thousand(count: float, expected: str) -> None:
    assert text.size(count) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (None, ""),
        (0.0054, "5 ms"),
        (3.14, "3.1 s"),
        (59.4, "59 s"),
        (130, "2 min 10 s"),
        (3900, "1 h 5 min"),
    ],
)
def test_durations(seconds: float | None, expected: str) -> None:
    assert text.duration(seconds) == expected


def test_clock_names_the_day_only_when_it_was_another() -> None:
    now = datetime(2026, 3, 2, 18, 0, tzinfo=UTC)
    assert text.clock(datetime(2026, 3, 2, 14, 2), now) == "14:02 UTC"
    assert text.clock(datetime(2026, 3, 1, 14, 2), now) == "2026-03-01 14:02 UTC"


def test_plain_text_keeps_no_markdown() -> None:
    escaped = text.plain("**x** [a](javascript:alert(1)) $b$ <i> :red[x] :tada: a -> b")
    visible = escaped.replace("\\", "").replace("\u200b", "")
    assert visible == "**x** [a](javascript:alert(1)) $b$ <i> :red[x] :tada: a -> b"
    for active in ("**", "](", " $b", " <i", ":red", ":tada", "->"):
        assert active not in escaped
    assert "\u200b" not in text.plain("---question--- and a <= b-c")[:20]


def test_plain_text_is_one_short_line() -> None:
    assert text.plain("a\n\nb\t c", 10) == "a b c"
    assert text.shorten("abcdefgh", 5) == "abcd…"
