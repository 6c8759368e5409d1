"""Attention in numbers: measures over the steps, and what each position received."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from analysis.errors import AnalysisError, NeedsJob
from analysis.figure import Axis, Figure, Marker, Note, Series
from analysis.rows import (
    MEASURES,
    UNITS,
    Selection,
    check_step,
    chosen,
    chosen_heads,
    chosen_layers,
    layer_statistics,
    position_of,
    recomputable_layers,
    recomputed_rows,
    step_range,
)
from analysis.words import number, provenance, selection_words, source_words
from cache_store.reader import Capture

RECEIVED = {
    "sum": "attention received, sum",
    "max": "attention received, largest",
    "last": "attention received from the last query",
}
BAND = (10, 90)  # percentiles
WHOLE_QUERY_CELLS_PER_SECOND = 5e7  # column sums and maxima of every row; an estimate for the ETA

STATISTICS_NOTE = Note(
    "Steps up to 0 are the last prompt tokens, step 1 is the first generated token. A band spans "
    "the 10th to the 90th percentile of the heads behind the line.",
    "entropy H = −Σᵢ pᵢ ln pᵢ (nats); effective tokens = exp H; masses are sums of p over the "
    "sink, the recent window, or the single largest entry",
)
RECEIVED_NOTE = Note(
    "High positions are what the queries come back to; policies such as H2O keep exactly these. "
    "Early positions are seen by more queries, which favours them in sums.",
    "sum: Σ_t A[t, i] over the queries t; largest: max_t A[t, i]; A is the mean over the query "
    "heads of a KV head",
)


def step_statistics(
    capture: Capture,
    layer: Selection,
    head: Selection,
    measures: Sequence[str],
    *,
    by_layer: bool = False,
    step: int | None = None,
) -> Figure:
    """Lines over steps: of one head; of a mean, with its 10-90 % band; or one line per layer.

    `by_layer` draws one measure for every layer (of head `head`, or the mean over heads). The
    measures share one axis, so they must share a unit: the three masses do, entropy and effective
    tokens stand alone. `step` is marked. Raises AnalysisError.
    """
    unknown = [measure for measure in measures if measure not in MEASURES]
    if unknown or not measures:
        raise AnalysisError(
            f"There is no measure {unknown[0]!r}; choose {', '.join(MEASURES)}."
            if unknown
            else f"No measure was chosen; choose {', '.join(MEASURES)}."
        )
    units = {UNITS[measure] for measure in measures}
    if len(units) > 1:
        raise AnalysisError(
            f"{' and '.join(sorted(units))} cannot share an axis; show these measures one by one."
        )
    if by_layer and len(measures) > 1:
        raise AnalysisError("One line per layer shows one measure at a time.")
    heads = chosen_heads(capture, head)
    layers = chosen_layers(capture, layer if not by_layer else "mean")
    left_out = recomputable_layers(capture)[1] if len(layers) > 1 else []
    layers = [number for number in layers if number not in left_out]
    if not layers:
        raise AnalysisError("No layer's rows are stored in this run; choose one layer.")
    steps, values = _statistics(capture, layers, heads, measures)
    if by_layer:
        lines, series = values[measures[0]].mean(axis=1), [f"layer {n}" for n in layers]
        what = f"head {head}, by layer" if len(heads) == 1 else "mean over heads, by layer"
        arrays = {"y": lines}
    else:
        series = [MEASURES[measure] for measure in measures]
        pooled = [values[measure].reshape(-1, len(steps)) for measure in measures]
        arrays = {"y": np.stack([part.mean(axis=0) for part in pooled])}
        if len(layers) * len(heads) > 1:
            bands = [np.percentile(part, BAND, axis=0).astype(np.float32) for part in pooled]
            arrays |= {
                "low": np.stack([low for low, _ in bands]),
                "high": np.stack([high for _, high in bands]),
            }
        what = selection_words(layer, head)
    label = ", ".join(MEASURES[measure] for measure in measures)
    y_label = "attention mass" if len(measures) > 1 else MEASURES[measures[0]]
    band = f"; band: {BAND[0]}th to {BAND[1]}th percentile of the heads" if "low" in arrays else ""
    missing = f"; without layers {', '.join(map(str, left_out))} (rows not stored)"
    return Figure(
        "lines",
        f"{y_label[0].upper()}{y_label[1:]} over the steps",
        Axis("step", steps),
        Axis(y_label, unit=units.pop(), range=_measure_range(measures[0], capture.info.length)),
        arrays,
        series=tuple(Series(name) for name in series),
        markers=_step_markers(capture, step),
        caption=(
            f"{what[0].upper()}{what[1:]}{band}{missing if left_out else ''}; "
            f"{source_words(capture)}."
        ),
        alt=_lines_alt(f"{label} over steps, {what}", "step", steps, series, arrays["y"]),
        note=STATISTICS_NOTE,
        provenance=provenance(
            capture,
            figure="step_statistics",
            layer=layer,
            head=head,
            measures=list(measures),
            by_layer=by_layer,
        ),
    )


def _statistics(
    capture: Capture, layers: list[int], heads: list[int], measures: Sequence[str]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Steps (m,) and each measure as float32 (layers, heads, m)."""
    parts: dict[str, list[np.ndarray]] = {measure: [] for measure in measures}
    steps = np.zeros(0, int)
    for layer in layers:
        steps, statistics = layer_statistics(capture, layer)
        for measure in measures:
            parts[measure].append(statistics[measure][heads])
    return steps, {measure: np.stack(part) for measure, part in parts.items()}


def _measure_range(measure: str, length: int) -> tuple[float, float] | None:
    """The same axis for every head, so that views can be compared; free for effective tokens."""
    ranges = {"share": (0.0, 1.0), "nats": (0.0, math.log(max(2, length)))}
    return ranges.get(UNITS[measure])


def _step_markers(capture: Capture, step: int | None) -> tuple[Marker, ...]:
    markers = [Marker("x", x=0.5, label="response")] if capture.info.response_length else []
    if step is not None and check_step(capture, step) >= step_range(capture)[0]:
        markers.append(Marker("x", x=step, label="step", selected=True))
    return tuple(markers)


def _lines_alt(
    what: str, axis: str, places: np.ndarray, series: Sequence[str], lines: np.ndarray
) -> str:
    """Where each line is highest, in words; at most six lines are told."""
    told = [
        f"{name} highest, {number(float(line.max()))}, at {axis} {int(places[line.argmax()]):,} "
        f"(mean {number(float(line.mean()))})"
        for name, line in list(zip(series, lines, strict=True))[:6]
    ]
    return f"{what[0].upper()}{what[1:]}: {'; '.join(told)}."


def received_attention(
    capture: Capture,
    layer: Selection,
    kv_head: Selection,
    *,
    statistic: str = "sum",
    whole: bool = False,
) -> Figure:
    """Line: the attention each position received ("sum", "max", or "last" of the stored rows).

    From the observed rows (the prompt's window and every generated token), or with `whole` from
    every query of the text, which raises NeedsJob (kind "prompt_attention") until it is derived.
    A mean over KV heads or layers has a 10-90 % band. Raises AnalysisError.
    """
    info = capture.info
    if statistic not in RECEIVED or (whole and statistic == "last"):
        offered = [name for name in RECEIVED if not (whole and name == "last")]
        raise AnalysisError(
            f"There is no received attention {statistic!r} here; choose {' or '.join(offered)}."
        )
    layers = chosen_layers(capture, layer)
    kv_heads = chosen("KV head", kv_head, info.kv_heads)
    if whole:
        derived = capture.derived("prompt_attention", {})
        if derived is None:
            cells = info.length**2 / 2 * info.layers * info.query_heads
            raise NeedsJob("prompt_attention", {}, cells / WHOLE_QUERY_CELLS_PER_SECOND)
        with derived:
            values = derived.array(statistic)[layers][:, kv_heads]
        queries = "every query of the text"
    else:
        left_out = recomputable_layers(capture)[1] if len(layers) > 1 else []
        layers = [number for number in layers if number not in left_out]
        if not layers:
            raise AnalysisError("No layer's rows are stored in this run; choose one layer.")
        values = np.stack([_received(capture, number, statistic)[kv_heads] for number in layers])
        first = position_of(capture, step_range(capture)[0])
        queries = f"the queries from position {first:,}"
        if left_out:
            queries += f", without layers {', '.join(map(str, left_out))} (rows not stored)"
    values = values.reshape(-1, info.length).astype(np.float32)
    arrays = {"y": values.mean(axis=0, keepdims=True)}
    band = ""
    if len(values) > 1:
        low, high = np.percentile(values, BAND, axis=0).astype(np.float32)
        arrays |= {"low": low[None], "high": high[None]}
        band = f"; band: {BAND[0]}th to {BAND[1]}th percentile of the KV heads"
    what = selection_words(layer, kv_head).replace("head", "KV head")
    positions = np.arange(info.length)
    markers = [Marker("x", x=info.prompt_length - 0.5, label="response")]
    return Figure(
        "lines",
        f"Attention received, {what}",
        Axis("position", positions),
        Axis(RECEIVED[statistic]),
        arrays,
        series=(Series(RECEIVED[statistic]),),
        markers=tuple(markers if info.response_length else ()),
        caption=(
            f"{what[0].upper()}{what[1:]}: {RECEIVED[statistic]}, from {queries}{band}; "
            f"{source_words(capture)}."
        ),
        alt=_lines_alt(
            f"{RECEIVED[statistic]} by position, {what}",
            "position",
            positions,
            [RECEIVED[statistic]],
            arrays["y"],
        ),
        note=RECEIVED_NOTE,
        provenance=provenance(
            capture,
            figure="received_attention",
            layer=layer,
            kv_head=kv_head,
            statistic=statistic,
            whole=whole,
        ),
    )


def _received(capture: Capture, layer: int, statistic: str) -> np.ndarray:
    """Attention of the observed rows per KV head, float32 (kv_heads, P + T)."""
    info = capture.info
    if layer in info.stored_layers:
        frame = capture.kv_stats(layer).sort_values(["head", "position"])
        column = frame[f"attention_{statistic}"].to_numpy(np.float32)
        return column.reshape(info.kv_heads, info.length)
    received = np.zeros((info.kv_heads, info.length), np.float32)
    for start in range(position_of(capture, step_range(capture)[0]), info.length, 64):
        stop = min(info.length, start + 64)
        rows = recomputed_rows(capture, layer, range(info.query_heads), start, stop)
        rows = rows.reshape(info.kv_heads, info.group, stop - start, stop).mean(axis=1)
        if statistic == "sum":
            received[:, :stop] += rows.sum(axis=1)
        elif statistic == "max":
            np.maximum(received[:, :stop], rows.max(axis=1), out=received[:, :stop])
        else:
            received[:, :stop] = rows[:, -1]
    return received
