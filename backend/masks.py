"""Keep-masks of other tools, taken in beside a capture and compared like a policy.

A file holds one kept entry per row: the columns layer, head (a KV head), position and, where the
masks change while decoding, step. `kvpolicies.external` says what the rows mean.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePath

import numpy as np

from backend.uploads import PARQUET_EXPANSION, upload_limit
from cache_store.errors import KVScopeError
from cache_store.files import CAPTURE_FILE, check_run_id
from cache_store.reader import Capture, CaptureInfo, Derived
from cache_store.writer import DerivedWriter, derived_path
from kvpolicies.errors import PolicyError

KIND = "keep_masks"
COLUMNS = ("layer", "head", "position", "step")
NEEDED = COLUMNS[:3]


class MasksError(KVScopeError):
    """A file of keep-masks cannot be used; the message says why."""


@dataclass(frozen=True)
class MaskSet:
    """One imported set: `source` names it in a choice, {"masks": source}."""

    source: str
    label: str
    rows: int
    steps: int
    created_at: datetime


def import_masks(
    home: Path | str, run_id: str, name: str, data: bytes, *, max_bytes: int | None = None
) -> str:
    """Keep the masks of an uploaded .npz or .parquet file beside a run; returns their `source`.

    Writes the derived kind `keep_masks`, spec {"source": hash of the file}: array `evicted_at`
    int32 (layers, kv_heads, P + T), table `label` (text, row_count, step_count). The same file
    again is kept as it is. Raises MasksError, one sentence, for what cannot be read or does not
    fit the run; nothing is unpickled.
    """
    folder = Path(home) / check_run_id(run_id)
    label = PurePath(name.replace("\\", "/")).name.encode("utf-8", "replace").decode()[:200]
    limit = upload_limit() if max_bytes is None else max_bytes
    if len(data) > limit:
        raise MasksError(
            f"{label} has {len(data) / 1e6:.3g} MB, above the limit of {limit / 1e6:.3g} MB: "
            "compress it, list only the steps where something changes, or raise "
            "KVSCOPE_MAX_UPLOAD_BYTES."
        )
    source = hashlib.sha256(data).hexdigest()[:16]
    with DerivedWriter(folder, KIND, {"source": source}) as writer:
        if not writer.exists:
            columns = _columns(label, data, PARQUET_EXPANSION * limit)
            with Capture.open(folder / CAPTURE_FILE) as capture:
                evicted_at = _evicted_at(label, columns, capture.info)
            writer.add_array("evicted_at", evicted_at)
            steps = len(np.unique(columns["step"])) if "step" in columns else 1
            rows = len(columns["layer"])
            writer.add("label", {"text": [label], "row_count": [rows], "step_count": [steps]})
            writer.finish()
    return source


def mask_sets(capture: Capture) -> list[MaskSet]:
    """The imported sets of a run, oldest first."""
    listed = capture.derived_list()
    sets = []
    for path in listed.loc[listed["kind"] == KIND, "path"].tolist():
        with Derived.open(path, capture_id=capture.id) as derived:
            label = derived.table("label").iloc[0]
            sets.append(
                MaskSet(
                    str(derived.spec["source"]),
                    str(label["text"]),
                    int(label["row_count"]),
                    int(label["step_count"]),
                    derived.created_at,
                )
            )
    return sets


def delete_masks(home: Path | str, run_id: str, source: str) -> None:
    """Forget one imported set and its replay. What is not there is no error."""
    folder = Path(home) / check_run_id(run_id)
    for kind, spec in ((KIND, {"source": source}), ("replay", {"policy": {"masks": source}})):
        derived_path(folder, kind, spec).unlink(missing_ok=True)


def _columns(name: str, data: bytes, max_bytes: int) -> dict[str, np.ndarray]:
    """The columns of the file's own format, each one-dimensional."""
    if data[:4] == b"PAR1":
        columns = _parquet(name, data, max_bytes)
    elif data[:2] == b"PK":
        columns = _npz(name, data, max_bytes)
    else:
        raise MasksError(
            f"{name} is neither an .npz nor a Parquet file: write the columns layer, head, "
            "position with numpy.savez or as Parquet."
        )
    missing = [column for column in NEEDED if column not in columns]
    if missing:
        raise MasksError(
            f"{name} lacks the column {missing[0]}: give one row per kept entry with layer, head, "
            "position and optionally step."
        )
    for column, values in columns.items():
        if values.ndim != 1:
            raise MasksError(f"Column {column} of {name} has {values.ndim} dimensions: give one.")
        if values.dtype.kind not in "iu":
            raise MasksError(
                f"Column {column} of {name} holds {values.dtype}: it must hold whole numbers."
            )
    lengths = {len(values) for values in columns.values()}
    if len(lengths) > 1:
        raise MasksError(f"The columns of {name} have different lengths: {sorted(lengths)}.")
    if lengths == {0}:
        raise MasksError(f"{name} has no rows, so nothing would be kept: list the kept entries.")
    return columns


def _npz(name: str, data: bytes, max_bytes: int) -> dict[str, np.ndarray]:
    damaged = MasksError(f"{name} is damaged or cut short: write it again with numpy.savez.")
    columns = {}
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = {info.filename: info for info in archive.infolist()}
            wanted = {column: members.get(f"{column}.npy") for column in COLUMNS}
            if sum(info.file_size for info in wanted.values() if info) > max_bytes:
                raise _too_large(name, max_bytes)
            for column, info in wanted.items():
                if info is not None:
                    columns[column] = _npy(name, column, archive.read(info))
    except MasksError:
        raise
    except Exception as error:  # zipfile and numpy fail in many ways on what is no archive
        raise damaged from error
    return columns


def _npy(name: str, column: str, data: bytes) -> np.ndarray:
    """One array, its size checked before memory is taken. Raises ValueError when damaged."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read is None:
        raise ValueError(f"unknown format {version}")
    shape, _, dtype = read(file)
    if dtype.hasobject:
        raise MasksError(
            f"Column {column} of {name} is pickled Python, which is never read: save whole numbers."
        )
    count = int(np.prod(shape, dtype=np.float64))
    if count * dtype.itemsize != len(data) - file.tell():
        raise ValueError("its header states another size")
    return np.frombuffer(data, dtype, count, file.tell()).reshape(shape)


def _parquet(name: str, data: bytes, max_bytes: int) -> dict[str, np.ndarray]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, np.ndarray] = {}
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        wanted = [column for column in COLUMNS if column in file.schema_arrow.names]
        if file.metadata.num_rows * 8 * max(1, len(wanted)) > max_bytes:
            raise _too_large(name, max_bytes)
        for column in wanted:
            kind = file.schema_arrow.field(column).type
            if not pa.types.is_integer(kind):
                raise MasksError(
                    f"Column {column} of {name} holds {str(kind)[:40]}: it must hold whole numbers."
                )
        table = file.read(columns=wanted, use_threads=False)
        for column in wanted:
            if table.column(column).null_count:
                raise MasksError(f"Column {column} of {name} has empty cells: fill or drop them.")
            columns[column] = table.column(column).to_numpy()
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise MasksError(f"{name} is damaged or cut short: write it again as Parquet.") from error
    return columns


def _too_large(name: str, max_bytes: int) -> MasksError:
    return MasksError(
        f"{name} unpacks to more than {max_bytes / 1e6:.3g} MB: list only the steps where "
        "something changes."
    )


def _evicted_at(name: str, columns: Mapping[str, np.ndarray], info: CaptureInfo) -> np.ndarray:
    """int32 (layers, kv_heads, P + T), where each step that occurs lists every layer and head."""
    from kvpolicies.external import masks_as_result

    try:
        result = masks_as_result(
            columns,
            layers=info.layers,
            heads=info.kv_heads,
            prompt_length=info.prompt_length,
            length=info.length,
            label=name,
        )
    except PolicyError as error:
        text = str(error)
        raise MasksError(f"{name} does not fit this run: {text}.") from error
    evicted_at: np.ndarray = result.evicted_at.numpy().copy()
    windowed = [layer for layer, window in enumerate(info.sliding_window) if window is not None]
    step = np.asarray(columns.get("step", np.zeros_like(columns["layer"])), np.int64)
    early = np.asarray(columns["position"], np.int64) >= info.prompt_length + step
    if early.any():
        at = int(early.argmax())
        raise MasksError(
            f"{name} keeps position {int(columns['position'][at])} at step {int(step[at])}, when "
            f"only {info.prompt_length + int(step[at]):,} positions exist: check how its steps are "
            "counted (0 is the end of the prompt)."
        )
    place = np.asarray(columns["layer"], np.int64) * info.kv_heads + columns["head"]
    for listed in np.unique(step):
        there = np.zeros(info.layers * info.kv_heads, bool)
        there[place[step == listed]] = True
        for missing in np.flatnonzero(~there):
            layer, head = divmod(int(missing), info.kv_heads)
            if layer not in windowed:
                raise MasksError(
                    f"{name} keeps nothing in layer {layer}, head {head} at step {int(listed)}: "
                    "list the kept entries of every layer and KV head."
                )
            evicted_at[layer, head] = info.response_length + 1
    return evicted_at
