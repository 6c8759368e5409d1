"""The parts of the Queries page: which queries, in which projection, with their texts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pandas as pd
import streamlit as st

from analysis.errors import AnalysisError, NeedsJob
from analysis.figure import Figure, Note
from analysis.lookaheads import draft_name, lookahead, recorded_lookaheads
from analysis.projections import METRICS, NAMES, NEIGHBOURS, projection_spec
from analysis.queries import WINDOW
from analysis.words import selection_words
from cache_store.reader import CaptureInfo
from kvpolicies.choice import canonical, title
from pages.parts import backstage, card, looks_maps, places, selection, waiting
from pages.parts.query_texts import query_texts
from pages.parts.recall_drafts import DRAFTED_ON
from pages.parts.text import number, plain

if TYPE_CHECKING:
    from analysis.lookaheads import Lookahead

SPACES = ("queries", "queries and keys")
COLOURS = ("group", "segment", "token", "step", "position")
NONE = "none"
DRAFTED = 8
FEWEST = 5  # points that UMAP and t-SNE need
_HEIGHT = 480
MAP = "map-figure"
LOOKAHEAD_WIDTH = 320
TABLE_NOTE = Note(
    "The table measures the queries themselves, not their picture: the paper's claim holds where "
    "lookahead and response lie nearer than prompt window and response. A distance below the "
    "spread means that the two groups overlap.",
    "distance = ‖mean a − mean b‖₂; cosine of the two means; spread = mean ‖x − mean of its own "
    "group‖₂; ratio = distance / spread",
    "LAQ, Figure 7 and Section 3",
)
TEXT_NOTE = Note(
    "They are what the groups of points stand for: a token that is pointed at rings its point, and "
    "a point lights up its token. The query of the chosen step has a colour of its own.",
    "the query of step t stands at position P + t − 1, P the length of the prompt",
    "LAQ, Figure 7(b)",
)
LABELS = ("prompt window", "lookahead", "response")
OF_THIS_PAGE = (
    "space", "map", "by", "draft", "drafter", "draft_budget", "draft_steps", "window",
    "neighbours", "distance", "metric", "seed",
)  # fmt: skip


@dataclass(frozen=True)
class Look:
    """Everything the page shows; `wanted` is a lookahead that is not recorded yet."""

    run_id: str
    info: CaptureInfo
    layer: int
    head: int | str
    step: int
    spec: dict[str, Any]
    by: str
    draft: Lookahead | None
    wanted: NeedsJob | None

    @property
    def name(self) -> str:
        return looks_maps.as_name(self.spec)

    @property
    def joint(self) -> bool:
        return self.spec["what"] == "joint"

    def link(self) -> dict[str, Any]:
        return places.link(
            self.run_id, *OF_THIS_PAGE, layer=self.layer, head=self.head, step=self.step
        )


def controls(run_id: str, info: CaptureInfo) -> Look:
    """One row of controls; the rare ones behind "More"."""
    draft, wanted = None, None
    with st.container(horizontal=True, vertical_alignment="bottom"):
        space = selection.segment("Show", "space", SPACES)
        layer = places.layer(run_id, info)
        head = places.query_head(run_id, info, mean=space == SPACES[0])
        beside = st.container(width=LOOKAHEAD_WIDTH) if space == SPACES[0] else None
        step = places.step(info)
        with st.popover("More", icon=":material/tune:"):
            options = _options(info, space)
            fresh = _fresh(info)
    if beside is not None:
        with beside:
            draft, wanted = _lookahead(run_id, fresh)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        label = selection.segment("Projection", "map", tuple(NAMES.values()))
        by = selection.choice("Colour", "by", COLOURS, COLOURS[0], width=130)
    method = next(key for key, name in NAMES.items() if name == label)
    spec = projection_spec(
        "queries" if space == SPACES[0] else "joint",
        layer,
        head,
        method,
        lookahead_spec=None if draft is None else draft.spec,
        **options,
    )
    return Look(run_id, info, layer, head, step, spec, by, draft, wanted)


def _options(info: CaptureInfo, space: str) -> dict[str, Any]:
    """What changes the picture: the prompt's window, and the options of UMAP and t-SNE."""
    options: dict[str, Any] = {}
    if space == SPACES[0]:
        most = max(1, min(64, info.prompt_length))
        options["window"] = places.number(
            "Prompt window (tokens)", "window", 1, most, min(WINDOW, most)
        )
    options["neighbours"] = places.number(
        "Neighbours", "neighbours", 2, 100, NEIGHBOURS, help="UMAP's, and t-SNE's perplexity."
    )
    options["distance"] = places.number(
        "Least distance (UMAP)", "distance", 0.0, 1.0, 0.1, step=0.05
    )
    options["metric"] = selection.choice("Metric", "metric", METRICS, METRICS[0])
    options["seed"] = places.number("Seed", "seed", 0, 9999, 0)
    return options


def _fresh(info: CaptureInfo) -> tuple[dict[str, Any], int]:
    """The lookahead that could be recorded: policy of the small cache, and tokens drafted."""
    st.caption("A lookahead to record")
    key = selection.choice("Draft on a cache of", "drafter", DRAFTED_ON, DRAFTED_ON[0])
    usual = max(1, info.prompt_length // 4)
    budget = places.number("Its budget (entries)", "draft_budget", 1, info.prompt_length, usual)
    steps = places.number("Drafted tokens", "draft_steps", 1, 16, DRAFTED)
    options = {} if key == "full" else {"budget": int(budget)}
    return canonical({"key": key, "options": options}), int(steps)


def _lookahead(
    run_id: str, fresh: tuple[dict[str, Any], int]
) -> tuple[Lookahead | None, NeedsJob | None]:
    """The chosen lookahead, recorded already or offered as a job."""
    capture = backstage.capture(run_id)
    recorded = {
        draft_name(made.spec["policy"], made.spec["steps"]): made
        for made in recorded_lookaheads(capture)
    }
    new = draft_name(*fresh)
    names = [*recorded, *([] if new in recorded else [new]), NONE]
    labels = {name: made.title for name, made in recorded.items()}
    labels.setdefault(new, f"{fresh[1]} tokens on {title(fresh[0])}, not recorded")
    chosen = selection.choice(
        "Lookahead",
        "draft",
        names,
        new if new in recorded or not recorded else list(recorded)[-1],
        per_run=True,
        format_func=lambda name: labels.get(name, name),
    )
    if chosen == NONE:
        return None, None
    if chosen in recorded:
        return recorded[chosen], None
    try:
        return lookahead(capture, *fresh), None
    except NeedsJob as need:
        return None, need


def show(look: Look) -> dict[str, str | Note]:
    """The map, beside it the table of distances and the texts; returns the words below them."""
    settings = {"The paper's settings": _settings(look)}
    if look.joint:
        figure = projected(look)
        return ({"The map": figure.note} if figure is not None and figure.note else {}) | settings
    notes: dict[str, str | Note] = {}
    with st.grid(2, min_column_width=440):
        figure = projected(look)
        if figure is not None and figure.note:
            notes["The map"] = figure.note
        with st.container():
            _missing_lookahead(look)
            _texts(look, figure)
    _distances(look)
    return notes | {"The texts": TEXT_NOTE, "Distances": TABLE_NOTE} | settings


def _settings(look: Look) -> str:
    """Which of the papers' settings are shown."""
    if look.joint:
        return (
            "AttentionViz moves and scales the keys of a head onto its queries, as here; it "
            "projects with t-SNE, UMAP or PCA and colours by position or token."
        )
    window = look.spec["options"]["window"]
    drafted = "none is shown here"
    if look.draft is not None:
        drafted = f"here a {look.draft.title}"
    return (
        f"The paper drafts {DRAFTED} tokens on a SnapKV cache ({drafted}) and sets them beside the "
        f"prompt's last {WINDOW} tokens ({'as here' if window == WINDOW else f'here {window}'}) "
        "and the full cache's response."
    )


def projected(look: Look) -> Figure | None:
    """The map as it is shown: PCA while another one is on its way, with the offer to compute it."""
    points, _ = looks_maps.points(look.run_id, look.name)
    method = look.spec["method"]
    if method != "pca" and len(points.vectors) < FEWEST:
        places.sentence(
            f"{NAMES[method]} needs at least {FEWEST} points and these are "
            f"{len(points.vectors)}; choose PCA or a longer prompt window."
        )
        return None
    highlight = look.info.prompt_length + look.step - 1
    try:
        figure = looks_maps.query_map(look.run_id, look.name, look.by, highlight)
    except NeedsJob as need:
        what = "queries and keys" if look.joint else "queries"
        name = f"{NAMES[method]} of {what}, {selection_words(look.layer, look.head)}"
        with st.container():
            waiting.job_offer(need, look.run_id, name, key="projection")
            return projected(replace(look, spec={**look.spec, "method": "pca"}))
    except AnalysisError as error:
        places.sentence(error)
        return None
    card.figure_card(figure, key=MAP, link_values=look.link(), height=_HEIGHT)
    return figure


def _missing_lookahead(look: Look) -> None:
    """The button that records the chosen lookahead, where there is none yet."""
    if look.wanted is not None:
        waiting.job_offer(
            look.wanted, look.run_id, "This lookahead", key="lookahead", verb="Record it"
        )


def _distances(look: Look) -> None:
    """How far the groups lie apart, in numbers."""
    table = looks_maps.centroids(look.run_id, look.name)
    with st.container(border=True, gap="xsmall", key="card-distances"):
        st.markdown("**How far the groups lie apart**")
        st.dataframe(
            table,
            hide_index=True,
            placeholder="",
            alt="Distances between the centroids of the groups",
            column_config={
                "first": st.column_config.TextColumn("Group"),
                "second": st.column_config.TextColumn("and group"),
                "distance": st.column_config.NumberColumn("Distance", format="%.3g"),
                "cosine": st.column_config.NumberColumn("Cosine", format="%.3f"),
                "spread": st.column_config.NumberColumn("Spread", format="%.3g"),
                "ratio": st.column_config.NumberColumn("Ratio", format="%.2f"),
            },
        )
        st.caption(plain(_claim(table)))
        card.actions(lambda: table, key="distances", name="centroids", link_values=look.link())


def _claim(table: pd.DataFrame) -> str:
    """The paper's claim, as this head answers it."""
    to_response = table[table["second"] == LABELS[2]].set_index("first")["distance"]
    if LABELS[1] not in to_response or to_response.isna().any():
        return "A recorded lookahead and a response are needed to test the paper's claim."
    window, draft = to_response[LABELS[0]], to_response[LABELS[1]]
    verb = "nearer to" if draft < window else "no nearer to"
    return (
        f"The lookahead's queries lie {verb} the response's than the prompt window's do: "
        f"{number(draft)} against {number(window)}."
    )


def _texts(look: Look, figure: Figure | None) -> None:
    """The texts of the groups beside the map, as LAQ's Figure 7(b); tokens and points answer each
    other."""
    if figure is None:
        return
    points, _ = looks_maps.points(look.run_id, look.name)
    with st.container(border=True, gap="xsmall", key="card-said"):
        st.markdown("**Their texts**")
        query_texts(points, figure, key="said", chart=MAP, dark=card.theme() == "dark")
