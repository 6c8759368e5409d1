"""Keep-masks of other tools: what they mean, and every way in which a file can be bad."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from backend.masks import MasksError, delete_masks, import_masks, mask_sets
from cache_store.reader import Capture
from tests.synthetic import Synthetic

LAYERS, HEADS, PROMPT, STEPS = 2, 2, 6, 3


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    home = tmp_path_factory.mktemp("home")
    capture = Synthetic(
        layers=LAYERS, query_heads=2, kv_heads=HEADS, head_dim=4, prompt_length=PROMPT,
        response_length=STEPS, window=2,
    )  # fmt: skip
    capture.write(home)
    return home, capture.run_id


def rows(kept: list[int], step: int = 0) -> list[tuple[int, int, int, int]]:
    """The same positions in every layer and head."""
    return [
        (layer, head, p, step) for layer in range(LAYERS) for head in range(HEADS) for p in kept
    ]


def evicted(home: Path, run_id: str, source: str) -> np.ndarray:
    with Capture.open(home / run_id / "capture.duckdb") as capture:
        derived = capture.derived("keep_masks", {"source": source})
        assert derived is not None
        with derived:
            return derived.array("evicted_at")


def columns(listed: list[tuple[int, int, int, int]], steps: bool = False) -> dict[str, np.ndarray]:
    names = ("layer", "head", "position", "step")[: 4 if steps else 3]
    return {name: np.array([row[i] for row in listed]) for i, name in enumerate(names)}


def npz(values: dict[str, Any], save: Callable[..., None] = np.savez) -> bytes:
    file = io.BytesIO()
    save(file, **values)
    return file.getvalue()


def parquet(values: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(values), file)
    return file.getvalue()


GOOD = columns(rows([0, 5]))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.npz", npz(GOOD)),
        ("b.npz", npz(GOOD, np.savez_compressed)),
        ("c.parquet", parquet(GOOD)),
        ("d.npz", npz({name: values.astype(np.uint8) for name, values in GOOD.items()})),
        ("e.npz", npz(GOOD | {"note": np.array(["text"], object)})),  # never looked at
    ],
)
def test_rows_without_steps_are_what_the_prompt_keeps(
    run: tuple[Path, str], name: str, data: bytes
) -> None:
    home, run_id = run
    source = import_masks(home, run_id, f"/some/where/{name}", data)
    with Capture.open(home / run_id / "capture.duckdb") as capture:
        listed = {one.source: one for one in mask_sets(capture)}
    evicted_at = evicted(home, run_id, source)
    assert evicted_at.dtype == np.int32 and evicted_at.shape == (LAYERS, HEADS, PROMPT + STEPS)
    never = STEPS + 1
    assert evicted_at[1, 0].tolist() == [never, 0, 0, 0, 0, never, never, never, never]
    assert (listed[source].label, listed[source].rows, listed[source].steps) == (name, 8, 1)
    assert import_masks(home, run_id, name, data) == source
    delete_masks(home, run_id, source)
    delete_masks(home, run_id, source)
    with Capture.open(home / run_id / "capture.duckdb") as capture:
        assert mask_sets(capture) == []


def test_steps_list_what_is_cached_after_them(run: tuple[Path, str]) -> None:
    home, run_id = run
    data = npz(columns(rows([0, 1, 2, 3, 4, 5]) + rows([0, 5, 6, 7], step=2), steps=True))
    source = import_masks(home, run_id, "steps.npz", data)
    evicted_at = evicted(home, run_id, source)
    assert evicted_at[0, 1].tolist() == [4, 2, 2, 2, 2, 4, 4, 4, 4]
    delete_masks(home, run_id, source)


def header_of_a_terabyte() -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": "<i8", "fortran_order": False, "shape": (1 << 37,)}
    )
    return archive({"layer.npy": file.getvalue(), "head.npy": b"", "position.npy": b""})


def archive(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, data in members.items():
            zipped.writestr(name, data)
    return file.getvalue()


def changed(**values: Any) -> dict[str, np.ndarray]:
    return GOOD | {name: np.array(value) for name, value in values.items()}


FULL = npz(GOOD)
BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "neither an .npz nor a Parquet"),
    "text": (b"layer,head,position\n0,0,1\n", "neither an .npz nor a Parquet"),
    "pickle": (b"\x80\x04\x95\x10\x00\x00\x00", "neither an .npz nor a Parquet"),
    "cut npz": (FULL[: len(FULL) // 2], "damaged or cut short"),
    "cut parquet": (parquet(GOOD)[:-40], "damaged or cut short"),
    "broken zip": (b"PK\x03\x04" + bytes(300), "damaged or cut short"),
    "broken parquet": (b"PAR1" + bytes(300) + b"PAR1", "damaged or cut short"),
    "no array inside": (archive({"layer.npy": b"hello"}), "damaged or cut short"),
    "a terabyte announced": (header_of_a_terabyte(), "damaged or cut short"),
    "a bomb": (archive({"layer.npy": bytes(300_000_000)}), "unpacks to more than"),
    "pickled column": (npz(changed(layer=np.array([{}] * 8, object))), "pickled"),
    "no position": (npz({"layer": GOOD["layer"], "head": GOOD["head"]}), "lacks the column pos"),
    "other columns": (parquet({"text": ["a"]}), "lacks the column layer"),
    "floats": (npz(changed(position=np.linspace(0, 5, 8))), "whole numbers"),
    "words": (parquet({**GOOD, "head": ["a"] * 8}), "whole numbers"),
    "empty cells": (parquet({**GOOD, "head": pa.array([None, *range(7)])}), "empty cells"),
    "a matrix": (npz(changed(layer=np.zeros((8, 2), int))), "2 dimensions"),
    "lengths": (npz(changed(layer=[0, 1])), "different lengths"),
    "no rows": (npz({name: values[:0] for name, values in GOOD.items()}), "no rows"),
    "layer beyond": (npz(changed(layer=GOOD["layer"] + 1)), "holds 2, outside 0 to 1"),
    "negative": (npz(changed(position=GOOD["position"] - 1)), "holds -1, outside 0 to 8"),
    "step beyond": (npz(columns(rows([0], step=4), steps=True)), "holds 4, outside 0 to 3"),
    "not yet there": (npz(columns(rows([0, 6]))), "keeps position 6 at step 0"),
    "a head missing": (npz(columns(rows([0])[:-1])), "keeps nothing in layer 1, head 1 at step 0"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_one_sentence(run: tuple[Path, str], case: str) -> None:
    home, run_id = run
    data, words = BAD[case]
    with pytest.raises(MasksError) as refusal:
        import_masks(home, run_id, "masks.npz", data)
    message = str(refusal.value)
    assert words in message and "\n" not in message and "masks.npz" in message
    derived = home / run_id / "derived"
    assert not derived.exists() or not list(derived.iterdir())


def test_a_large_file_is_refused_before_it_is_read(run: tuple[Path, str]) -> None:
    home, run_id = run
    with pytest.raises(MasksError, match=r"100 MB, above the limit of 20 MB"):
        import_masks(home, run_id, "masks.npz", bytes(100_000_000))
    with pytest.raises(MasksError, match="above the limit"):
        import_masks(home, run_id, "masks.npz", FULL, max_bytes=100)


def test_layers_with_a_sliding_window_need_not_be_listed(tmp_path: Path) -> None:
    capture = Synthetic(
        layers=2, query_heads=2, kv_heads=2, head_dim=4, prompt_length=6, response_length=3,
        window=2, sliding_window=(4, None),
    )  # fmt: skip
    capture.write(tmp_path)
    data = npz(columns([row for row in rows([0, 5]) if row[0] == 1]))
    source = import_masks(tmp_path, capture.run_id, "m.npz", data)
    evicted_at = evicted(tmp_path, capture.run_id, source)
    assert (evicted_at[0] == 4).all() and evicted_at[1, 0, :6].tolist() == [4, 0, 0, 0, 0, 4]
