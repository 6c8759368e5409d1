"""Spans of the prompt that a reader marks: position ranges [first, last + 1)."""

from __future__ import annotations

import re

import numpy as np

from analysis.errors import AnalysisError
from analysis.text import token_pieces
from analysis.words import span, visible
from cache_store.reader import Capture

Span = tuple[int, int]


def find_span(capture: Capture, text: str) -> list[Span]:
    """Where a text occurs in the prompt, in order: the tokens that hold any of its characters.

    Exact first; if that finds nothing, ignoring case and the kind and number of spaces. Raises
    AnalysisError for a text that does not occur, or is empty.
    """
    if not text.strip():
        raise AnalysisError("Type some words of the prompt to mark them as evidence.")
    prompt = capture.prompt_text()
    places = [match.span() for match in re.finditer(re.escape(text), prompt)]
    if not places:
        loose = r"\s+".join(re.escape(word) for word in text.split())
        places = [match.span() for match in re.finditer(loose, prompt, re.IGNORECASE)]
    if not places:
        raise AnalysisError(f"The prompt does not contain “{visible(text, 60)}”.")
    return [span_of_characters(capture, start, stop) for start, stop in places]


def span_of_characters(capture: Capture, start: int, stop: int) -> Span:
    """The tokens that hold characters [start, stop) of the prompt, as samples name evidence.

    A character that is split over tokens takes all of them. Raises AnalysisError for a range
    without a character of the prompt.
    """
    tokens = capture.tokens().iloc[: capture.info.prompt_length]
    ends = tokens["char_end"].to_numpy()
    length = int(ends[-1])
    if not 0 <= start < stop <= length:
        raise AnalysisError(
            f"Characters {start:,} to {stop - 1:,} are no range of the prompt, which has "
            f"{length:,} characters."
        )
    starts = tokens["char_start"].to_numpy()
    inside = (starts < stop) & (np.maximum(ends, starts + 1) > start)
    held = np.flatnonzero(inside)
    return int(held[0]), int(held[-1]) + 1


def check_span(capture: Capture, marked: Span) -> Span:
    """The span, if it is a range of prompt positions. Raises AnalysisError otherwise."""
    first, stop = (int(place) for place in marked)
    if not 0 <= first < stop <= capture.info.prompt_length:
        raise AnalysisError(
            f"Positions {first:,} to {stop - 1:,} are no span of the prompt, whose positions are 0 "
            f"to {capture.info.prompt_length - 1:,}."
        )
    return first, stop


def span_words(capture: Capture, marked: Span, limit: int = 60) -> str:
    """A span in words: its positions and its text, shortened."""
    first, stop = check_span(capture, marked)
    text = visible("".join(token_pieces(capture)[first:stop]).strip(" "), limit).replace("␣", " ")
    noun = "position" if stop - first == 1 else "positions"
    return f"{noun} {span(first, stop)} “{text}”"
