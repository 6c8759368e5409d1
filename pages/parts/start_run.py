"""What a run will cost, starting it, and watching it."""

from __future__ import annotations

import math
import time
from typing import Any

import streamlit as st

from backend.admission import Estimate, earlier_captures, estimate
from backend.jobs import JobState, capture_job
from backend.prompts import Prompt
from backend.spec import CaptureSpec
from cache_store.errors import KVScopeError
from pages.parts import backstage, jobs_view, model_input, models_known, prompt_input
from pages.parts.model_input import Model
from pages.parts.text import duration, plain, shorten, size, some

MOST_RUNS = 50
_NONE = "–"
_BUSY_S = 0.5
_ASKED, _STARTED = "start_asked", "started_at"
_DOUBLE_CLICK_S = 1.0
_CLICK_HOLDS_S = 10.0


def link_values() -> dict[str, Any]:
    return {"run": st.session_state.get("run"), "job": st.query_params.get_all("job") or None}


def followed() -> None:
    """The jobs named in the URL, so that a reload shows them again."""
    asked = st.query_params.get_all("job")
    if not asked:
        return
    busy = any(not job.finished for job in _known(asked))
    st.fragment(run_every=_BUSY_S if busy else None)(_follow)(tuple(asked), busy)


def _follow(asked: tuple[str, ...], busy: bool) -> None:
    jobs = _known(asked)
    if not jobs:
        st.caption("The run that this address names is no longer in the list of jobs.")
        return
    for job in jobs:
        jobs_view.card(backstage.jobs(), job, where="page")
    if busy and all(job.finished for job in jobs):
        st.rerun()


def _known(asked: list[str] | tuple[str, ...]) -> list[JobState]:
    return [job for job in reversed(backstage.jobs().jobs()) if job.id in asked]


def check_and_start(
    prompts: list[Prompt], model: Model, settings: dict[str, Any], problem: str
) -> None:
    """What it will cost, the button, and why it cannot start; nothing starts that cannot fit.

    The button comes before everything that appears while the reader types, so that it stays under
    the pointer, and a click counts with the text as it is in the same script run."""
    refusals: list[str] = []
    specs: list[CaptureSpec] = []
    costs = st.container()
    label = f"Start {len(prompts)} runs" if 1 < len(prompts) <= MOST_RUNS else "Start"
    st.button(
        label, type="primary", icon=":material/play_arrow:", key="start", on_click=_start_asked
    )
    try:
        if len(prompts) > MOST_RUNS:
            raise KVScopeError(
                f"{len(prompts):,} rows are chosen, at most {MOST_RUNS} can be queued at once: "
                "choose fewer rows."
            )
        specs = [_spec(prompt, model, settings) for prompt in prompts]
        estimates = [_estimate(model, spec) for spec in specs]
        with costs:
            _costs(estimates, model)
        refusals = _advice(estimates, model)
    except KVScopeError as error:
        with costs:
            _costs([], model)
        refusals = [str(error)]
    for sentence in refusals:
        st.error(plain(sentence))
    clicked = time.monotonic() - st.session_state.pop(_ASKED, -math.inf) < _CLICK_HOLDS_S
    if problem and not prompt_input.something_given():
        (st.error if clicked else st.caption)(plain(problem))
    if clicked and specs and not refusals:
        _start(specs)


def _start_asked() -> None:
    """Keeps the click for a script run that comes to its end; a double click is one click."""
    now = time.monotonic()
    if now - st.session_state.get(_STARTED, -math.inf) >= _DOUBLE_CLICK_S:
        st.session_state[_ASKED] = now


def _spec(prompt: Prompt, model: Model, settings: dict[str, Any]) -> CaptureSpec:
    title = prompt_input.title() or shorten(prompt.text, 60)
    if prompt.source not in ("typed", "") and not prompt.source.startswith("sample"):
        file, row, number = prompt.source.rpartition(" row ")
        named = f"{shorten(file, 16)}{row}{number}" if file else shorten(prompt.source, 24)
        title = f"{named}: {shorten(prompt.text, 40)}"
    return CaptureSpec(
        context=prompt.context,
        question=prompt.question,
        model_id=model.id,
        title=title,
        source=prompt.source,
        **settings,
    )


def _start(specs: list[CaptureSpec]) -> None:
    """Queue the runs and follow them; what was typed stays."""
    try:
        st.query_params["job"] = [backstage.jobs().submit(capture_job(spec)) for spec in specs]
    except KVScopeError as error:
        st.error(plain(error))
        return
    st.session_state[_STARTED] = time.monotonic()
    st.rerun()


def _estimate(model: Model, spec: CaptureSpec) -> tuple[int, Estimate]:
    tokens = models_known.prompt_tokens(spec, model.facts.max_positions)
    earlier = earlier_captures(backstage.library(), model.id)
    return tokens, estimate(model.facts, tokens, spec, backstage.home(), observed=earlier)


def _costs(estimates: list[tuple[int, Estimate]], model: Model) -> None:
    """What all runs together take; dashes while there is nothing to read."""
    each = [one for _, one in estimates]
    with st.grid(4, min_column_width=90, gap="xsmall"):
        _fact("Prompt tokens", _counted([count for count, _ in estimates], model))
        _fact("Time, about", duration(sum(one.seconds for one in each)) if each else _NONE)
        _fact("Memory", size(max(one.memory_bytes for one in each)) if each else _NONE)
        _fact(
            "File" if len(each) < 2 else "Files",
            size(sum(one.file_bytes for one in each)) if each else _NONE,
        )


def _counted(tokens: list[int], model: Model) -> str:
    if not tokens:
        return _NONE
    fewest, most = min(tokens), max(tokens)
    if fewest != most:
        return f"{fewest:,}–{most:,}"
    limit = model.facts.max_positions
    return f"{most:,} of {limit:,}" if limit else f"{most:,}"


def _advice(estimates: list[tuple[int, Estimate]], model: Model) -> list[str]:
    """What would make it cheaper; returns why it cannot be had."""
    each = [one for _, one in estimates]
    refusals = list(dict.fromkeys(sentence for one in each for sentence in one.refusals))
    for sentence in dict.fromkeys(sentence for one in each for sentence in one.advice):
        st.caption(plain(sentence))
    fewer = min((one.suggested_layers for one in each if one.suggested_layers), key=len, default=[])
    if fewer:
        st.button(
            f"Store the rows of {some(len(fewer), 'layer')} only",
            on_click=model_input.store_layers,
            args=(model, fewer),
        )
    return refusals


def _fact(name: str, value: str) -> None:
    with st.container(gap=None):
        st.caption(name)
        st.text(value)
