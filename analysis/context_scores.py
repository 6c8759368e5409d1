"""What KVCompose ranks: attention of the task's tokens to the context, and its aggregation.

The attention is computed once per source of task tokens (a job where the context is long);
operators and norms then work on arrays of (layers, heads, context).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.errors import AnalysisError, NeedsJob
from analysis.traces import trace_from
from cache_store.reader import Capture

if TYPE_CHECKING:
    from torch import Tensor

    from analysis.traces import Source
    from kvpolicies.scores.attention import ContextAttention
    from kvpolicies.trace import Trace
    from kvpolicies.view import View

SOURCES = {
    "question": "the question's attention (task-aware)",
    "context": "a second reading of the context (task-agnostic)",
    "self": "the prompt's own rows (an approximation that favours early tokens)",
}
DIRECT_CELLS = 150_000_000  # attention weights computed while the reader waits
CELLS_PER_S = 5e7
KIND = "context_attention"  # the derived file of `context_attention`


@dataclass(frozen=True)
class TaskAttention:
    """Attention of the task's tokens to the context, aggregated over them (Eq. 14).

    largest, mean: float32 (layers, query_heads, context); layers: which of the model's layers they
    are (those in a sliding window are exempt); of one source of task tokens.
    """

    largest: np.ndarray
    mean: np.ndarray
    layers: tuple[int, ...]
    source: str


def touched(source: Source) -> tuple[int, ...]:
    """The layers that policies may touch: those without a sliding window."""
    from kvpolicies import PolicyError
    from kvpolicies.replayer import touched_layers

    facts: Any = source if not isinstance(source, Capture) else source.info
    windows = facts.sliding_window or (None,) * facts.layers
    try:
        return tuple(touched_layers(windows, facts.length))
    except PolicyError as error:
        raise AnalysisError(error.sentence) from error


def task_attention(
    source: Source, tokens: str = "question", progress: Callable[[int, int], None] | None = None
) -> TaskAttention:
    """KVCompose's Eq. 14 by maximum and by mean, from the states; every layer policies may touch.

    tokens: whose attention counts, a key of SOURCES. `progress(done, total)` counts layers and may
    raise to stop. Raises AnalysisError when there is no context, no question, or no second reading.
    """
    import torch

    from kvpolicies import PolicyError
    from kvpolicies.scores.attention import ContextAttention

    if tokens not in SOURCES:
        raise AnalysisError(f"Task tokens are {', '.join(SOURCES)}, not {tokens!r}.")
    score = ContextAttention(source=tokens)
    parts = []
    layers = touched(source)
    for number, layer in enumerate(layers):
        trace = trace_from(source, [layer], second_reading=tokens == "context")
        if tokens == "question" and (trace.context_length or 0) >= trace.prompt_length:
            raise AnalysisError(
                "This prompt has no question after its context, whose attention could count; "
                "choose another source."
            )
        with torch.inference_mode():
            try:
                parts.append([part.numpy() for part in score.task(_view(trace))])
            except PolicyError as error:
                raise AnalysisError(error.sentence) from error
        if progress is not None:
            progress(number + 1, len(layers))
    return TaskAttention(
        np.stack([part[0] for part in parts]), np.stack([part[1] for part in parts]), layers, tokens
    )


def _view(trace: Trace) -> View:
    """The only layer of a trace at the end of its prompt, as a score looks at it."""
    from kvpolicies.entries import RecordedEntries
    from kvpolicies.view import Extras, View

    context, prompt = trace.context_length or 0, trace.prompt_length
    if context < 1:
        raise AnalysisError("This prompt has no context to compress; capture one with a context.")
    second = trace.second_reading
    extras = Extras(output_norms=None if trace.output_norms is None else trace.output_norms[0])
    if second is not None:
        extras.second_queries, extras.second_keys = second[0][0], second[1][0]
    entries = RecordedEntries(trace.keys[0], trace.values[0], prompt)
    queries = trace.queries[0][:, :prompt]
    scaling = trace.scaling_of(0)
    return View(entries, queries, 0, scaling, trace.softcap, ranked=context, extras=extras)


def stored_task_attention(capture: Capture, tokens: str = "question") -> TaskAttention:
    """`task_attention` of a capture: from its derived file, or at once where that is quick.

    Raises NeedsJob (kind "context_attention", spec {"source": tokens}) otherwise, or for the
    second reading itself (kind "second_reading", which comes first).
    """
    if tokens not in SOURCES:
        raise AnalysisError(f"Task tokens are {', '.join(SOURCES)}, not {tokens!r}.")
    spec, info = {"source": tokens}, capture.info
    derived = capture.derived(KIND, spec)
    if derived is not None:
        with derived:
            largest, mean = derived.array("largest"), derived.array("mean")
            return TaskAttention(largest, mean, tuple(derived.array("layers").tolist()), tokens)
    rows = {
        "question": info.prompt_length - info.context_length,
        "context": 2 * info.context_length,
        "self": info.prompt_length // 2,
    }[tokens]
    cells = info.layers * info.query_heads * rows * info.context_length
    if tokens == "context" and capture.derived("second_reading", {}) is None:
        seconds = 5.0 + 2 * info.timings.get("prefill", 1.0)
        raise NeedsJob("second_reading", {}, seconds, "A second reading of the context")
    if cells > DIRECT_CELLS:
        raise NeedsJob(KIND, spec, cells / CELLS_PER_S, "Attention over the whole context")
    return task_attention(capture, tokens)


def derive_task_attention(
    capture: Capture, spec: Mapping[str, Any], step: Callable[[int, int], None]
) -> dict[str, np.ndarray]:
    """The arrays of the derived file "context_attention"; spec {"source": a key of SOURCES}."""
    found = task_attention(capture, str(spec.get("source")), step)
    return {"largest": found.largest, "mean": found.mean, "layers": np.array(found.layers)}


def aggregate(
    task: TaskAttention,
    source: Source,
    *,
    agg_task: str = "max",
    agg_group: str = "mean",
    value_norm: str = "none",
) -> np.ndarray:
    """Eq. 15: scores by KV head, before the mean term; float32 (layers, kv_heads, context).

    source: the run that the attention is from. value_norm: "value" weights by ‖v‖ and "output" by
    ‖v W_O‖.
    Raises AnalysisError for an operator that does not exist or norms that were not recorded.
    """
    import torch

    from kvpolicies import PolicyError, build
    from kvpolicies.scores.attention import ContextAttention

    try:
        options = {"agg_task": agg_task, "agg_group": agg_group, "value_norm": value_norm}
        score = build("kvcompose", budget=1, head_mean=False, **options).score
    except PolicyError as error:
        raise AnalysisError(error.sentence) from error
    assert isinstance(score, ContextAttention)
    chosen = torch.from_numpy(np.array(task.largest if agg_task == "max" else task.mean))
    scores = []
    for number, layer in enumerate(task.layers):
        view = _holder(source, layer, value_norm, chosen.shape[2])
        scores.append(_combined(score, view, chosen[number]))
    return np.stack(scores)


def _holder(source: Source, layer: int, value_norm: str, context: int) -> View:
    """A view of one layer for aggregation: its values only where they count."""
    import torch

    from kvpolicies.entries import RecordedEntries
    from kvpolicies.view import View

    if value_norm != "none":
        return _view(trace_from(source, [layer]))
    heads = source.info.kv_heads if isinstance(source, Capture) else source.kv_heads
    nothing = torch.empty(heads, context, 0)
    return View(RecordedEntries(nothing, nothing, context), nothing, 0, 1.0)


def _combined(score: ContextAttention, view: View, task: Tensor) -> np.ndarray:
    import torch

    from kvpolicies import PolicyError

    context = task.shape[1]
    with torch.inference_mode():
        try:
            return np.asarray(score.combine(view, task, context)[:, :context].numpy())
        except PolicyError as error:
            raise AnalysisError(error.sentence) from error
