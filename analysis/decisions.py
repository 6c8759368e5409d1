"""Why entries were kept or evicted, and which evictions were regretted most."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from analysis.colours import REASONS
from analysis.comparison import budget_words, head_words, rows_of_head, touched_layers
from analysis.errors import AnalysisError
from analysis.figure import Axis, Figure, Marker, Note, Series
from analysis.rows import MEAN, Selection, chosen, chosen_layers
from analysis.text import token_pieces
from analysis.words import OWN_MEASURE, number, provenance, source_words, visible
from cache_store.reader import Capture

if TYPE_CHECKING:
    from analysis.replays import Replayed

BINS = 40
LOG_SPAN = 100  # scores that span more than this factor are drawn by their logarithm
AROUND = 5  # tokens of context either side of a regretted one
# Codes of kvpolicies.decisions.Reason, which loads torch.
REASON_KEYS = ("none", "sink", "recent", "selected", "evicted", "never_scored")

REGRETTED_COLUMNS = (
    "rank", "position", "before", "token", "after", "segment", "regret", "missed", "heads",
    "layer", "head", "evicted_at", "score", "score_rank", "reason",
)  # fmt: skip

SCORE_NOTE = Note(
    "Entries left of the cut were evicted at this decision, entries right of it won the budget; "
    "protected ones were never in the contest. A cut through a crowd means that a slightly other "
    "score would have kept other entries; a cut through a gap, that the choice was clear.",
    "histogram of the scores that the decision ranked; the cut lies between the lowest score kept "
    "and the highest evicted",
    OWN_MEASURE,
)


@dataclass(frozen=True)
class _Head:
    """The entries of one head around its last eviction at or before a step.

    decided: that eviction's step, None where there was none; final: no later one followed. The
    masks are bool over the entries of the head: a score of their own for kept, protected and
    evicted.
    """

    decided: int | None
    final: bool
    score: np.ndarray
    kept: np.ndarray
    protected: np.ndarray
    evicted: np.ndarray
    unscored: int

    @property
    def groups(self) -> tuple[np.ndarray, ...]:
        """Scores of the kept, the protected and the evicted entries."""
        return tuple(self.score[mask] for mask in (self.kept, self.protected, self.evicted))

    @property
    def cut(self) -> float | None:
        """Halfway between the lowest score kept and the highest evicted; None where they overlap
        or where the kept entries' scores are those of a later decision."""
        kept, _, evicted = self.groups
        if not self.final or not len(kept) or not len(evicted) or kept.min() < evicted.max():
            return None
        return (float(kept.min()) + float(evicted.max())) / 2

    def words(self, step: int) -> str:
        if self.decided is None:
            return f"nothing was evicted up to step {step:,}, so no score decided anything."
        when = "the end of prefill" if self.decided == 0 else f"step {self.decided:,}"
        kept, protected, evicted = self.groups
        told = (
            f"eviction at {when}: {len(kept):,} kept, {len(evicted):,} evicted, "
            f"{len(protected):,} protected, {self.unscored:,} without a score (not drawn)."
        )
        if self.cut is not None:
            return f"{told} The cut lies at {number(self.cut)}."
        if not self.final:
            highest = f"; the highest evicted is {number(float(evicted.max()))}" * bool(
                len(evicted)
            )
            return f"{told} Entries that stayed show the score of a later decision{highest}."
        if len(kept) and len(evicted):
            return f"{told} Kept and evicted overlap: not all entries competed with each other."
        return told


def score_distribution(
    capture: Capture, replayed: Replayed, layer: int, head: int, step: int
) -> Figure:
    """Stacked bars: scores of one head at its last eviction at or before a step, with the cut.

    Kept, protected and evicted entries apart; those that were never scored are counted in the
    caption. Only an entry's last score is stored: at a decision that later ones followed, kept
    entries show the score of their own last decision, and the caption says so. Raises AnalysisError
    for a layer or head that does not exist, or a mean, whose scores have no common scale.
    """
    if MEAN in (layer, head):
        raise AnalysisError(
            "The scores of two heads have no common scale; choose one layer and one KV head."
        )
    entries = _entries(capture, replayed, layer, head, step)
    logarithmic, edges = _bins(np.concatenate(entries.groups))
    placed = [_placed(scores, logarithmic, edges) for scores in entries.groups]
    cut = () if entries.cut is None else (_placed(np.array([entries.cut]), logarithmic, edges)[0],)
    what = head_words(layer, head)
    told = entries.words(step)
    return Figure(
        "stacked_bars",
        "Scores at the decision",
        Axis("score", (edges[:-1] + edges[1:]) / 2, unit="log₁₀" if logarithmic else ""),
        Axis("entries"),
        {"y": np.stack([np.histogram(part, edges)[0] for part in placed]).astype(np.float32)},
        series=(
            Series("kept", REASONS["selected"].colour),
            Series("protected (sink, recent)", REASONS["recent"].colour),
            Series("evicted", REASONS["evicted"].colour),
        ),
        markers=tuple(Marker("x", x=float(place), label="cut") for place in cut),
        caption=(
            f"{what[0].upper()}{what[1:]}, {told} {budget_words([replayed])}; "
            f"{source_words(capture)}."
        ),
        alt=f"Histogram of the scores, {what}, {told}",
        note=SCORE_NOTE,
        provenance=provenance(
            capture,
            figure="score_distribution",
            policy=replayed.choice,
            layer=layer,
            head=head,
            step=step,
        ),
    )


def _entries(capture: Capture, replayed: Replayed, layer: int, head: int, step: int) -> _Head:
    (layer,), (head,) = (
        chosen_layers(capture, layer),
        chosen("KV head", head, capture.info.kv_heads),
    )
    evicted_at, score, rank, reason = (
        rows_of_head(values[layer], head, capture.info.kv_heads)
        for values in (replayed.evicted_at, replayed.score, replayed.rank, replayed.reason)
    )
    info = capture.info
    times = evicted_at[evicted_at <= info.response_length]
    before = times[times <= step]
    if not len(before):
        nothing = np.zeros(evicted_at.shape, bool)
        return _Head(None, True, score, nothing, nothing, nothing, 0)
    decided = int(before.max())
    cached = np.arange(info.length) < info.prompt_length + decided
    there = cached & (evicted_at >= decided)
    scored = there & np.isfinite(score) & (reason != REASON_KEYS.index("never_scored"))
    gone = evicted_at == decided
    return _Head(
        decided,
        bool(decided == times.max()),
        score,
        kept=scored & ~gone & (rank > 0),
        protected=scored & ~gone & (rank == 0),
        evicted=scored & gone,
        unscored=int((there & ~scored).sum()),
    )


def _bins(scores: np.ndarray) -> tuple[bool, np.ndarray]:
    """Whether scores are placed by their logarithm, and the edges of the bins on that scale."""
    if not len(scores):
        return False, np.linspace(0, 1, BINS + 1)
    low, high = float(scores.min()), float(scores.max())
    positive = scores[scores > 0]
    if low >= 0 and len(positive) and high / float(positive.min()) > LOG_SPAN:
        return True, np.linspace(math.log10(positive.min()), math.log10(high), BINS + 1)
    return False, np.linspace(low, high if high > low else low + 1, BINS + 1)


def _placed(scores: np.ndarray, logarithmic: bool, edges: np.ndarray) -> np.ndarray:
    """Scores on the axis; a score of 0 lies in the first bin of a logarithmic one."""
    scores = scores.astype(np.float64)
    if logarithmic:
        scores = np.log10(np.maximum(scores, 10.0 ** edges[0]))
    return np.clip(scores, edges[0], edges[-1])


def most_regretted(
    capture: Capture,
    replayed: Replayed,
    layer: Selection = MEAN,
    head: Selection = MEAN,
    count: int = 10,
) -> pd.DataFrame:
    """The evicted positions that later steps would have attended to most, worst first.

    One row per position, summed over the selected layers and KV heads (MEAN: all). Columns: rank;
    position; before, token, after (the text around it); segment; regret (attention mass, summed
    over steps and heads); missed (recurrences missed); heads (how many of them lost it); and the
    decision of the head that regrets it most: layer, head, evicted_at (step; <NA> where it was
    only never read), score, score_rank (0: not ranked), reason.
    """
    layers = touched_layers(capture, replayed, layer)
    per_head = replayed.evicted_at.shape[1]
    group = max(1, per_head // capture.info.kv_heads)
    heads = [
        kv_head * group + member
        for kv_head in chosen("KV head", head, capture.info.kv_heads)
        for member in range(group)
    ]
    regret = np.nan_to_num(replayed.regret_entry[np.ix_(layers, heads)].astype(np.float64))
    totals = regret.sum(axis=(0, 1))
    worst = [int(position) for position in np.argsort(-totals, kind="stable")[:count]]
    pieces, segments = token_pieces(capture), capture.tokens()["segment"].tolist()
    rows = []
    for rank, position in enumerate((p for p in worst if totals[p] > 0), 1):
        place = np.unravel_index(regret[:, :, position].argmax(), regret.shape[:2])
        at = layers[int(place[0])], heads[int(place[1])], position
        gone = int(replayed.evicted_at[at])
        rows.append(
            {
                "rank": rank,
                "position": position,
                "before": running_text(pieces[max(0, position - AROUND) : position]),
                "token": visible(pieces[position]),
                "after": running_text(pieces[position + 1 : position + 1 + AROUND]),
                "segment": segments[position],
                "regret": float(totals[position]),
                "missed": int(replayed.missed_entry[np.ix_(layers, heads, [position])].sum()),
                "heads": int((regret[:, :, position] > 0).sum()),
                "layer": at[0],
                "head": at[1],
                "evicted_at": gone if gone <= capture.info.response_length else None,
                "score": float(replayed.score[at]),
                "score_rank": int(replayed.rank[at]),
                "reason": REASON_KEYS[int(replayed.reason[at])].replace("_", " "),
            }
        )
    table = pd.DataFrame(rows, columns=REGRETTED_COLUMNS)
    return table.astype({"evicted_at": "Int64"})


def running_text(pieces: list[str]) -> str:
    """Tokens as text on one line: spaces stay, line ends and control characters become signs."""
    return "".join(
        " ".join(visible(part, len(part) + 1) if part else "" for part in piece.split(" "))
        for piece in pieces
    )
