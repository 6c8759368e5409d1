"""A figure as a file that loses nothing: JSON, or a Parquet table that carries the same JSON.

Reading it back gives equal arrays, texts and ranges, so that anybody can redraw the figure.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from analysis.colours import Category
from analysis.errors import AnalysisError
from analysis.figure import Axis, ColourScale, Figure, Marker, Note, Series

FORMAT = "kvscope figure 1"
PARQUET_KEY = b"kvscope.figure"
_PARTS = {"series": Series, "categories": Category, "markers": Marker}
_LARGEST_ARRAY_BYTES = 1 << 30


def to_dict(figure: Figure) -> dict[str, Any]:
    """Plain JSON values; arrays as compressed base64 with their dtype and shape."""
    told: dict[str, Any] = {"format": FORMAT}
    for field in dataclasses.fields(figure):
        told[field.name] = _plain(getattr(figure, field.name))
    return told


def from_dict(told: Mapping[str, Any]) -> Figure:
    """The figure of `to_dict`. Raises AnalysisError for anything else, one sentence."""
    if not isinstance(told, Mapping) or told.get("format") != FORMAT:
        raise AnalysisError(
            f"This is no figure file: it does not begin with the format {FORMAT!r}; export the "
            "figure again."
        )
    try:
        known = {field.name for field in dataclasses.fields(Figure)}
        parts = {name: value for name, value in told.items() if name in known}
        parts["x"], parts["y"] = (_axis(parts[name]) for name in ("x", "y"))
        parts["arrays"] = {name: _array(value) for name, value in parts["arrays"].items()}
        for name, kind in _PARTS.items():
            parts[name] = tuple(kind(**entry) for entry in parts[name])
        if parts["colour"] is not None:
            low, high = parts["colour"]["range"]
            parts["colour"] = ColourScale(**(parts["colour"] | {"range": (low, high)}))
        if parts["note"] is not None:
            parts["note"] = Note(**parts["note"])
        parts["point_text"] = tuple(str(text) for text in parts["point_text"])
        return Figure(**parts)
    except (KeyError, TypeError, ValueError, AttributeError, zlib.error) as error:
        raise AnalysisError(f"This figure file cannot be drawn: {error}.") from None


def to_json(figure: Figure) -> bytes:
    """The JSON file of a figure, the same bytes every time."""
    return json.dumps(to_dict(figure), ensure_ascii=True, indent=1).encode()


def to_parquet(figure: Figure) -> bytes:
    """The figure's table as Parquet, with the figure itself in the file's metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pandas(figure.table(), preserve_index=False)
    told = (table.schema.metadata or {}) | {PARQUET_KEY: json.dumps(to_dict(figure)).encode()}
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata(told), sink)
    return sink.getvalue().to_pybytes()


def read_figure(content: bytes) -> Figure:
    """The figure in a JSON or Parquet file written here. Raises AnalysisError for another file."""
    if content.startswith(b"PAR1"):
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            content = (pq.read_schema(pa.BufferReader(content)).metadata or {})[PARQUET_KEY]
        except (pa.ArrowException, KeyError):
            raise AnalysisError(
                "This Parquet file carries no figure: export the figure again, as Parquet or as a "
                "figure file."
            ) from None
    try:
        told = json.loads(content)
    except ValueError as error:
        raise AnalysisError(
            f"This is no figure file, because it is not JSON ({error}): name a file exported as "
            "“figure” or as Parquet."
        ) from None
    return from_dict(told)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        data = np.ascontiguousarray(value.astype(value.dtype.newbyteorder("<"), copy=False))
        packed = base64.b64encode(zlib.compress(data.tobytes(), 6)).decode()
        return {"dtype": data.dtype.str, "shape": list(value.shape), "zlib": packed}
    if isinstance(value, np.generic):
        return value.item()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {str(name): _plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value


def _array(told: Mapping[str, Any]) -> np.ndarray:
    dtype, shape = np.dtype(told["dtype"]), tuple(int(size) for size in told["shape"])
    if dtype.kind not in "buif":
        raise ValueError(f"an array of {dtype} is not made of numbers")
    expected = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if not 0 <= expected <= _LARGEST_ARRAY_BYTES:
        raise ValueError(f"an array of shape {shape} is too large")
    data = zlib.decompressobj().decompress(base64.b64decode(told["zlib"]), expected + 1)
    if len(data) != expected:
        raise ValueError(f"an array of shape {shape} does not hold as many numbers")
    return np.frombuffer(data, dtype).reshape(shape)


def _axis(told: Mapping[str, Any]) -> Axis:
    parts = dict(told)
    for name in ("values", "edges"):
        parts[name] = None if parts[name] is None else _array(parts[name])
    parts["ticks"] = tuple((float(place), str(text)) for place, text in parts["ticks"])
    parts["range"] = None if parts["range"] is None else tuple(parts["range"])
    return Axis(**parts)
