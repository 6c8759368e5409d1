"""How far a policy is from another at the same budget: the oracle above it, random below it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from analysis.comparison import (
    compared,
    lines_of,
    mean_over,
    step_axis,
    step_marker,
    touched_layers,
)
from analysis.errors import AnalysisError
from analysis.eviction_codes import held
from analysis.figure import Axis, Figure, Note
from analysis.rows import MEAN, Selection
from analysis.words import OWN_MEASURE
from cache_store.reader import Capture
from kvpolicies.choice import CONTEXT_SCORES, OWN_DEFAULTS, WINDOW_SCORES, canonical
from kvpolicies.methods import catalogue

if TYPE_CHECKING:
    from analysis.replays import Replayed

DISTANCE_NOTE = Note(
    "Two policies with the same budget can keep very different entries: 1 means the same ones. Few "
    "in common with little mass lost says that the choice hardly matters here; few in common with "
    "much mass lost, that this policy keeps the wrong ones.",
    "Jaccard |a ∩ b| / |a ∪ b| of the cached positions per head; difference of the attention mass "
    "kept, per query head; both averaged over the heads of a layer",
    OWN_MEASURE,
)
MEASURES = {
    "jaccard": ("kept entries in common", "Jaccard", "Kept entries in common with"),
    "mass_difference": ("mass kept, difference", "share", "Attention mass kept, difference to"),
}
# What fixes how many entries may stay: a reference at the same budget obeys it too.
BUDGET_OPTIONS = (
    "budget", "compression_ratio", "scope", "granularity", "skip_layers", "pin_prompt",
)  # fmt: skip


def oracle_choice(
    choice: Mapping[str, Any], realised: float | None = None
) -> dict[str, Any] | None:
    """The oracle at the budget and schedule of a choice; None where nothing is evicted.

    realised: entries per KV head and layer that the policy really kept, for one without a budget
    (a share of retrieval heads, masks of another tool): the reference then gets as many.
    """
    return _reference("oracle", choice, realised)


def random_choice(
    choice: Mapping[str, Any], realised: float | None = None
) -> dict[str, Any] | None:
    """Random eviction at the budget and schedule of a choice; see `oracle_choice`."""
    return _reference("random", choice, realised)


def _reference(
    key: str, choice: Mapping[str, Any], realised: float | None
) -> dict[str, Any] | None:
    method = catalogue().get(choice.get("key") or "")
    if method is not None and method.key == "full":
        return None
    score = method.score if method else choice.get("score", "")
    preset = method.presets.get(choice.get("preset") or "") if method else None
    given = {
        "scope": "context" if score in CONTEXT_SCORES else None,
        "skip_layers": OWN_DEFAULTS.get((score, "skip_layers")),
        **(method.defaults if method else {}),
        **(preset.options if preset else {}),
        **choice.get("options", {}),
    }
    own = method.schedule if method else "after_prefill"
    own = (preset.schedule if preset else None) or own
    schedule, fixed = _schedule(choice.get("schedule") or own, score, given)
    options = {name: given[name] for name in BUDGET_OPTIONS if given.get(name) is not None} | fixed
    if schedule != "per_partition" and not {"budget", "compression_ratio"} & options.keys():
        if realised is None or not realised >= 1:
            return None
        options["budget"] = round(realised)
    reference: dict[str, Any] = {"key": key, "options": options}
    return reference if schedule == "after_prefill" else {**reference, "schedule": schedule}


def _schedule(name: str, score: str, given: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The schedule that a reference can follow, and the options that fix it.

    A selection that only slides afterwards, or that evicts nothing, is compared with one eviction
    after prefill.
    """
    kind, _, number = name.rstrip(")").partition("(")
    if kind == "every":
        named = None if score in WINDOW_SCORES else given.get("window")
        interval = number or given.get("interval") or named or OWN_DEFAULTS["every", "interval"]
        return kind, {"interval": int(interval)}
    if kind == "per_partition":
        lag = int(number) if number else given.get("lag")
        fixed = {"sink": given.get("sink"), "lag": lag, "keep_ratio": given.get("keep_ratio")}
        return kind, {option: value for option, value in fixed.items() if value is not None}
    return ("every_step" if kind == "every_step" else "after_prefill"), {}


def eviction_interval(choice: Mapping[str, Any]) -> int | None:
    """Steps between two evictions of a policy that evicts every W steps; None for any other."""
    reference = _reference("oracle", choice, 1)
    if reference is None or reference.get("schedule") != "every":
        return None
    return int(reference["options"]["interval"])


def reference_of(
    policy: Replayed, replayeds: Sequence[Replayed], key: str = "oracle"
) -> Replayed | None:
    """The reference among `replayeds` that has a policy's own budget and schedule, or None."""
    wanted = _reference(key, policy.choice, policy.facts.get("realised_budget"))
    if wanted is None:
        return None
    matches = [other for other in replayeds if _same(other.choice, wanted)]
    return matches[0] if matches else None


def _same(choice: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return choice.get("key") == wanted["key"] and canonical(dict(choice)) == canonical(dict(wanted))


def distance_to(capture: Capture, replayed: Replayed, reference: Replayed) -> pd.DataFrame:
    """How far a policy is from a reference, one row per touched layer and step 0 … T.

    Columns: layer; step; jaccard, share of kept entries in common (attended to, where a policy
    only selects), mean over heads;
    mass_difference, attention mass kept minus the reference's, mean over query heads (NaN at
    step 0, which no query follows).
    """
    jaccard = _jaccard(capture, replayed, reference)
    mass = replayed.mass_kept.astype(np.float64) - reference.mass_kept
    layers = touched_layers(capture, replayed, MEAN)
    steps = np.arange(capture.info.response_length + 1)
    difference = np.full((len(layers), len(steps)), np.nan, np.float32)
    for row, layer in enumerate(layers):
        difference[row, 1:] = mean_over(mass[layer])
    return pd.DataFrame(
        {
            "layer": np.repeat(np.array(layers, int), len(steps)),
            "step": np.tile(steps, len(layers)),
            "jaccard": jaccard[layers].mean(axis=1).astype(np.float32).reshape(-1),
            "mass_difference": difference.reshape(-1),
        }
    )


def distance_over_steps(
    capture: Capture,
    replayeds: Sequence[Replayed],
    reference: Replayed,
    layer: Selection = MEAN,
    *,
    measure: str = "jaccard",
    step: int | None = None,
) -> Figure:
    """Lines over steps 0 … T: each policy's distance to one reference, in a layer or the mean.

    measure: "jaccard" or "mass_difference". The band of a mean is over layers. Raises AnalysisError
    for another measure.
    """
    if measure not in MEASURES:
        raise AnalysisError(f"There is no measure {measure!r}; choose {', '.join(MEASURES)}.")
    steps = capture.info.response_length
    rows = []
    for policy in replayeds:
        frame = distance_to(capture, policy, reference)
        part = frame[measure].to_numpy(np.float32).reshape(-1, steps + 1)
        if layer != MEAN:
            part = part[frame["layer"].to_numpy().reshape(-1, steps + 1)[:, 0] == layer]
        rows.append(part)
    label, unit, title = MEASURES[measure]
    limits = (0.0, 1.02) if measure == "jaccard" else None
    return compared(
        capture,
        replayeds,
        lines_of(replayeds, rows, steps + 1),
        title=f"{title} {reference.title}",
        x=step_axis(steps, first=0),
        y=Axis(label, unit=unit, range=limits),
        what="mean over all layers" if layer == MEAN else f"layer {layer}, mean over its heads",
        note=DISTANCE_NOTE,
        spread="layers",
        more=_selecting(replayeds) if measure == "jaccard" else "",
        markers=step_marker(step, steps),
        figure="distance_over_steps",
        reference=reference.choice,
        layer=layer,
        measure=measure,
    )


def _jaccard(capture: Capture, first: Replayed, second: Replayed) -> np.ndarray:
    """|a ∩ b| / |a ∪ b| of what is cached after each step, 1 where neither holds anything;
    float64 (layers, heads, T + 1). Of a policy that only selects, what the step attends to."""
    heads = max(first.evicted_at.shape[1], second.evicted_at.shape[1])
    info = capture.info
    if only_selects(first) or only_selects(second):
        return np.stack(
            [
                _shared(*(_repeated(held(policy, step), heads) for policy in (first, second)))
                for step in range(info.response_length + 1)
            ],
            axis=-1,
        )
    one, other = (_repeated(policy.evicted_at, heads) for policy in (first, second))
    both = _cached(np.minimum(one, other), info.prompt_length, info.response_length)
    either = _cached(np.maximum(one, other), info.prompt_length, info.response_length)
    return np.where(either > 0, both / np.maximum(either, 1), 1.0)


def _selecting(policies: Sequence[Replayed]) -> str:
    """What is compared of policies whose cache holds everything."""
    names = [policy.title.partition(",")[0] for policy in policies if only_selects(policy)]
    if not names:
        return ""
    verb = "evicts" if len(names) == 1 else "evict"
    return f"{' and '.join(names)} {verb} nothing: compared is what each step attends to."


def only_selects(policy: Replayed) -> bool:
    """Whether a policy chooses what each step attends to without evicting anything."""
    return policy.visible is not None and bool((policy.evicted_at > policy.response_length).all())


def _repeated(values: np.ndarray, heads: int) -> np.ndarray:
    """One row per query head where the other policy has its own set for each of them."""
    return np.repeat(values, heads // values.shape[1], axis=1)


def _shared(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """|a ∩ b| / |a ∪ b| over the last axis, 1 where both are empty."""
    both, either = (one & other).sum(-1), (one | other).sum(-1)
    return np.where(either > 0, both / np.maximum(either, 1), 1.0)


def _cached(evicted_at: np.ndarray, prompt_length: int, steps: int) -> np.ndarray:
    """How many entries are cached after each step; int64 (layers, heads, T + 1)."""
    born = np.maximum(0, np.arange(evicted_at.shape[2]) - prompt_length + 1)
    gone = np.maximum(evicted_at, born)  # nothing leaves before it came
    counts = np.empty((*evicted_at.shape[:2], steps + 1), np.int64)
    came = np.cumsum(np.bincount(born, minlength=steps + 1)[: steps + 1])
    for place in np.ndindex(evicted_at.shape[:2]):
        left = np.bincount(np.minimum(gone[place], steps + 1), minlength=steps + 2)
        counts[place] = came - np.cumsum(left[: steps + 1])
    return counts
