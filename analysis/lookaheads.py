"""Recorded lookahead responses (LAQ): drafts on a small cache, kept beside a capture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from analysis.errors import AnalysisError, NeedsJob
from analysis.replays import LOAD_S
from cache_store.derived_writer import derived_path
from cache_store.reader import Capture, Derived
from kvpolicies.choice import canonical, title, to_text
from kvpolicies.errors import PolicyError

KEPT_IN_MEMORY = 64  # some ten kilobytes each


@dataclass(frozen=True)
class Lookahead:
    """A draft of the response, generated greedily on a compressed cache.

    queries: float16 (layers, query_heads, n, d), after rotary embedding; tokens: int64 (n,) and
    texts (n,): what was drafted. title: the policy of the small cache and the number of steps.
    """

    spec: Mapping[str, Any]
    title: str
    queries: np.ndarray
    tokens: np.ndarray
    texts: tuple[str, ...]


def lookahead(capture: Capture, choice: Mapping[str, Any], steps: int) -> Lookahead:
    """The recorded lookahead of `steps` tokens on a cache of the chosen policy.

    Raises NeedsJob (kind "lookahead") when it was not recorded, AnalysisError for a choice that is
    none.
    """
    try:
        spec = {"policy": canonical(choice), "steps": int(steps)}
    except PolicyError as error:
        raise AnalysisError(error.sentence) from error
    path = derived_path(capture.path.parent, "lookahead", spec)
    if path.exists():
        return _read(path, capture.id)
    times, info = capture.info.timings, capture.info
    seconds = LOAD_S + times.get("prefill", 1.0)
    seconds += steps * times.get("decode", 1.0) / max(1, info.response_length)
    raise NeedsJob("lookahead", spec, seconds, "A lookahead")


def draft_name(choice: Mapping[str, Any], steps: int) -> str:
    """A lookahead in an address: the policy of its cache and how many tokens."""
    return f"{to_text(canonical(choice))}:{steps}"


def recorded_lookaheads(capture: Capture) -> list[Lookahead]:
    """All lookaheads recorded beside a capture, oldest first."""
    listed = capture.derived_list()
    paths = listed["path"][listed["kind"] == "lookahead"]
    return [_read(Path(path), capture.id) for path in paths]


@lru_cache(maxsize=KEPT_IN_MEMORY)
def _read(path: Path, capture_id: str) -> Lookahead:
    """A derived file never changes, so its path is enough to remember it by."""
    with Derived.open(path, capture_id=capture_id) as derived:
        queries, tokens = derived.array("queries"), derived.array("tokens")
        texts = tuple(str(text) for text in derived.table("token")["text"])
        spec = derived.spec
    return Lookahead(
        spec,
        f"lookahead of {len(tokens)} on {title(spec['policy'])}",
        queries,
        tokens,
        texts,
    )
