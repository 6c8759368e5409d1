"""What a draft is worth (LAQ): recall over the Q-cache's length, and over its cache's budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from analysis.comparison import mean_over
from analysis.curves import BAND_WORDS, banded, captures_provenance, captures_words, same_model
from analysis.errors import AnalysisError
from analysis.figure import Axis, Figure, Marker, Note, Series
from analysis.recall import RankedWindows
from analysis.recall_figures import COLOURS, recall_alt, recall_of_heads
from analysis.words import number
from cache_store.reader import Capture

LENGTH_NOTE = Note(
    "How many queries of a draft are worth recording: recall of what the response needs, by the "
    "length of the Q-cache. A flat line says that a shorter draft would do.",
    "recall of the first n queries (LAQ), or of the prompt's last W and the first n (LAQ++)",
    "LAQ, Figure 5: quality and length of the Q-cache",
)
QUALITY_NOTE = Note(
    "How good a draft's queries are when the cache it is written on shrinks. Lines that stay level "
    "and near the full cache's say that a poor draft asks for the same entries as a good one.",
    "recall of the first query, and of all queries, of the draft written on each cache; above them "
    "the full cache's own response, below them the prompt's last queries",
    "LAQ, Figure 5(a) and Section 6.1: quality of the Q-cache",
)


def recall_over_length(
    captures: Sequence[Capture],
    lengths: Mapping[str, Sequence[RankedWindows]],
    budget: int,
    *,
    window: int = 0,
) -> Figure:
    """Lines over the number of queries recorded, one per response (`ranked_lengths`), by title."""
    same_model(captures)
    if not lengths:
        raise AnalysisError("No lookahead response is recorded; record one first.")
    arrays = banded([recall_of_heads(ranked, budget, None, None) for ranked in lengths.values()])
    places = next(iter(lengths.values()))[0].labels
    joined = f", joined with the prompt's last {window}" if window else ""
    return Figure(
        "lines",
        "Recall by the length of the Q-cache",
        Axis("queries of the response", places),
        Axis("recall", range=(0.0, 1.02)),
        arrays,
        series=tuple(Series(name) for name in lengths),
        caption=(
            f"B = {budget:,}{joined}, all layers and KV heads"
            f"{f'; band: {BAND_WORDS} of the heads' if 'low' in arrays else ''}. "
            f"{captures_words(captures)}."
        ),
        alt=recall_alt(places, list(lengths), arrays["y"]),
        note=LENGTH_NOTE,
        provenance=captures_provenance(
            captures, figure="recall_over_length", budget=budget, window=window
        ),
    )


def recall_over_draft_budget(
    captures: Sequence[Capture],
    drafts: Mapping[str, Mapping[int, Sequence[RankedWindows]]],
    budget: int,
    *,
    full: Sequence[RankedWindows],
    before: Sequence[RankedWindows],
    steps: int,
    colours: Mapping[str, str] | None = None,
    window: int = 0,
) -> Figure:
    """Lines over the budget of the draft's cache: recall at `budget` of its first query (dotted)
    and of all its queries (solid), one colour per policy of that cache.

    drafts: by the policy's title and budget, `ranked_lengths` of each capture that has the draft;
    full: the same of the full cache's own response, of which the first `steps` queries count, as
    many as the drafts have; before: `ranked_windows` of the prompt's end, of which the first window
    counts. Raises AnalysisError where no draft is recorded.
    """
    same_model(captures)
    sizes = sorted({size for by_size in drafts.values() for size in by_size})
    if not sizes:
        raise AnalysisError("No lookahead response is recorded; record one first.")
    lines, series = [], []
    for index, (name, by_size) in enumerate(drafts.items()):
        colour = (colours or {}).get(name, COLOURS[index % len(COLOURS)])
        most = max(int(ranked.queries.max()) for made in by_size.values() for ranked in made)
        for last, dash, told in ((True, "solid", f"{most} queries"), (False, "dot", "1 query")):
            line = np.full(len(sizes), np.nan, np.float32)
            for place, size in enumerate(sizes):
                if size in by_size:
                    rows = recall_of_heads(by_size[size], budget, None, None)
                    line[place] = mean_over(rows)[-1 if last else 0]
            lines.append(line)
            series.append(Series(f"{name}, {told}", colour, dash))
    own = mean_over(recall_of_heads(full, budget, None, None))
    best = float(own[np.searchsorted(full[0].labels, steps).clip(max=len(own) - 1)])
    least = float(mean_over(recall_of_heads(before, budget, None, None))[0])
    joined = f", joined with the prompt's last {window}" if window else ""
    return Figure(
        "lines",
        "Recall by the budget of the draft's cache",
        Axis("budget of the draft's cache", np.array(sizes), unit="entries"),
        Axis("recall", range=(0.0, 1.02)),
        {"y": np.stack(lines)},
        series=tuple(series),
        markers=tuple(
            Marker("y", y=level, label=label)
            for level, label in ((best, "the response's own"), (least, "the prompt's last"))
            if level == level
        ),
        caption=(
            f"B = {budget:,}{joined}, mean over all layers and KV heads. The response's own first "
            f"{steps} queries reach {number(best)}, the prompt's last ones {number(least)}. "
            f"{captures_words(captures)}."
        ),
        alt=recall_alt(np.array(sizes), [line.name for line in series], np.stack(lines)),
        note=QUALITY_NOTE,
        provenance=captures_provenance(
            captures, figure="recall_over_draft_budget", budget=budget, window=window
        ),
    )
