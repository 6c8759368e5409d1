"""The panel "Evidence": a span of the prompt, who keeps it, for how long and at which budget."""

from __future__ import annotations

from functools import partial

import streamlit as st

from analysis import eviction
from analysis.figure import Note
from backend.first_start import samples
from cache_store.errors import KVScopeError
from pages.parts import backstage, card, eviction_looks, eviction_sweep, policy_slots, selection
from pages.parts import eviction_view as view
from pages.parts.eviction_view import Look
from pages.parts.text import plain, shorten

SCOPES = ("all layers and heads", "this layer", "this head")
GRID_HEIGHT = 250
_FOUND = "evidence_not_found"


def show(look: Look) -> dict[str, str | Note]:
    """Draw the panel; returns the words below it."""
    span = _mark(look)
    view.pending(look)
    if span is None or not look.ready:
        return {}
    scope = selection.segment("Survival over", "over", SCOPES)
    layer = None if scope == SCOPES[0] else look.layer
    head = look.kv_head if scope == SCOPES[2] else None
    notes: dict[str, str | Note] = {}
    survival = eviction_looks.evidence_survival(
        look.run_id, look.names, span, look.step, layer, head
    )
    with st.grid(2, min_column_width=440):
        left = st.container(gap="small")
        with left:
            card.figure_card(survival, key="survival", link_values=look.link(), height=view.HEIGHT)
        with st.container(gap="small"):
            over_budget = eviction_sweep.show(look, span, left)
    with st.grid(4, min_column_width=205):
        for index, replayed in enumerate(look.ready):
            group = replayed.evicted_at.shape[1] // look.info.kv_heads
            grid = eviction_looks.evidence_grid(
                look.run_id,
                eviction_looks.name_of(replayed.choice),
                span,
                look.step,
                (look.layer, look.head_of(replayed)),
            )
            card.figure_card(
                grid,
                key=f"evidence-{index}",
                link_values=look.link(),
                height=GRID_HEIGHT,
                on_cell=partial(view.go, group=group),
            )
            if grid.note:
                notes["By layer and head"] = grid.note
    if survival.note:
        notes = {"Survival": survival.note, **notes}
    return notes | ({"Budget": over_budget} if over_budget else {})


def marked(run_id: str, prompt_length: int) -> tuple[int, int] | None:
    """The marked span [first, stop): the URL's, or the evidence that the run's sample names."""
    text = st.query_params.get("span")
    if text is not None:
        first, _, last = text.partition("-")
        if selection.is_step(first, 0, prompt_length - 1) and selection.is_step(
            last, int(first), prompt_length - 1
        ):
            selection.forget_notice("span")
            return int(first), int(last) + 1
        selection.notice(
            "span",
            f"There is no span {shorten(text, 20)!r} here: write it as first-last, of the prompt's "
            f"positions 0 to {prompt_length - 1:,}.",
        )
    known = of_sample(run_id)
    return known[0] if known else None


@st.cache_data(max_entries=64, show_spinner=False)
def of_sample(run_id: str) -> list[tuple[int, int]]:
    """The spans that the answer of a sample rests on; none for a reader's own prompt."""
    capture = backstage.capture(run_id)
    source = str(capture.info.settings.get("source") or "")
    sample = next((item for item in samples() if source == f"sample {item.id}"), None)
    if sample is None:
        return []
    return [eviction.span_of_characters(capture, *piece) for piece in sample.evidence]


def _mark(look: Look) -> tuple[int, int] | None:
    """The controls: find a text, take what the sample names, or give positions."""
    capture = backstage.capture(look.run_id)
    now = marked(look.run_id, look.info.prompt_length)
    spans = _offered(look.run_id, now)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        policy_slots.hold("find", st.query_params.get("find", ""))
        st.text_input(
            "Find in the prompt",
            key="find",
            placeholder="a part of the prompt that the answer needs",
            width=300,
            on_change=_find,
            args=(look.run_id,),
        )
        if spans:
            words = [eviction.span_words(capture, span) for span in spans]
            st.session_state["marked"] = spans.index(now) if now in spans else 0
            st.selectbox(
                "Evidence",
                range(len(spans)),
                format_func=lambda index: words[index],
                key="marked",
                on_change=lambda: take(spans[st.session_state["marked"]]),
            )
        with st.popover("Positions", icon=":material/straighten:"):
            _by_position(look, now)
    sentence = st.session_state.get(_FOUND)
    if sentence:
        st.warning(plain(sentence))
    if now is None:
        st.markdown(
            "Mark what the answer rests on, such as the needle: type a part of the prompt, give "
            "its positions, or drag over it on the text."
        )
    return now


def _offered(run_id: str, now: tuple[int, int] | None) -> list[tuple[int, int]]:
    """The spans to choose from: those found, those of the sample, and the marked one."""
    spans = []
    text = st.query_params.get("find", "")
    if text:
        try:
            spans = eviction.find_span(backstage.capture(run_id), text)
        except KVScopeError:
            spans = []
    spans += of_sample(run_id)
    if now is not None:
        spans.append(now)
    return list(dict.fromkeys(spans))


def _find(run_id: str) -> None:
    """From a callback: mark the first place where the text occurs, or say that it does not."""
    text = st.session_state["find"].strip()
    st.session_state.pop(_FOUND, None)
    if not text:
        st.query_params.pop("find", None)
        return
    st.query_params["find"] = text
    try:
        take(eviction.find_span(backstage.capture(run_id), text)[0])
    except KVScopeError as error:
        st.session_state[_FOUND] = str(error)


def _by_position(look: Look, now: tuple[int, int] | None) -> None:
    first, stop = now or (0, min(8, look.info.prompt_length))
    last = look.info.prompt_length - 1
    st.session_state["span_first"], st.session_state["span_last"] = first, stop - 1
    for name, key in (("First position", "span_first"), ("Last position", "span_last")):
        st.number_input(name, 0, last, key=key, on_change=_positioned, args=(key,))


def _positioned(changed: str) -> None:
    """From a callback: the other end follows where the two would cross."""
    first, last = st.session_state["span_first"], st.session_state["span_last"]
    if first > last:
        first = last = first if changed == "span_first" else last
    take((first, last + 1))


def take(span: tuple[int, int]) -> None:
    """From a callback: these positions [first, stop) are the evidence."""
    st.session_state.pop(_FOUND, None)
    st.query_params["span"] = f"{span[0]}-{span[1] - 1}"
