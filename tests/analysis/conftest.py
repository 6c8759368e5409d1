"""Captures that the analysis tests share, written once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cache_store.reader import Capture
from tests.synthetic import Synthetic

KINDS: dict[str, Synthetic] = {
    "grouped": Synthetic(),
    "one_to_one": Synthetic(query_heads=3, kv_heads=3, seed=1),
    "softcap": Synthetic(softcap=2.0, seed=2),
    "sliding": Synthetic(sliding_window=(6, None), seed=3),
    "unstored": Synthetic(layers=3, stored_layers=(1,), sliding_window=(None, None, 5), seed=4),
    "nothing_stored": Synthetic(stored_layers=(), softcap=3.0, seed=5),
    "short_prompt": Synthetic(prompt_length=3, response_length=4, seed=6),
    "one_token": Synthetic(prompt_length=1, response_length=1, seed=7),
    "nothing_generated": Synthetic(response_length=0, seed=8),
    "smallest": Synthetic(layers=1, query_heads=1, kv_heads=1, prompt_length=9, response_length=2),
}

Opener = Callable[[str], tuple[Synthetic, Capture]]


@pytest.fixture(scope="session")
def open_capture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opener]:
    """Opens a capture of KINDS by name, with the reference it was made from."""
    opened: dict[str, Capture] = {}
    homes: dict[str, Path] = {}

    def opener(kind: str) -> tuple[Synthetic, Capture]:
        if kind not in opened:
            homes[kind] = tmp_path_factory.mktemp(kind)
            opened[kind] = Capture.open(KINDS[kind].write(homes[kind]))
        return KINDS[kind], opened[kind]

    yield opener
    for capture in opened.values():
        capture.close()
