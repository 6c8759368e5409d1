"""The chosen policies replayed: what is there at once, what is missing as jobs of a second."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeGuard

import streamlit as st

from analysis.errors import NeedsJob
from backend.jobs import JobSpec, JobState, derive_job
from cache_store.errors import KVScopeError
from kvpolicies import PolicyError
from kvpolicies.choice import title, to_text
from pages.parts import backstage, drawn, eviction_looks
from pages.parts.policy_slots import Choice
from pages.parts.text import duration, plain, some

if TYPE_CHECKING:
    from analysis.replays import Replayed

AUTOMATIC = ("replay",)  # about a second each; what needs the model waits for a button
_BUSY_S, _IDLE_S = 0.4, 2.0
_NAMED = 12  # jobs that one offer names
_ASKED = "replays_asked"
_WHOLE = "replays_whole_run"


@dataclass(frozen=True)
class Pending:
    """A replay that is not there yet: the job it needs, or the sentence why it cannot be."""

    title: str
    job: JobSpec | None
    need: NeedsJob | None
    error: str = ""

    def __post_init__(self) -> None:
        if self.job is not None and self.need is not None:
            drawn.tell_job(self.job, self.need)


if TYPE_CHECKING:
    Seen = Replayed | Pending


def replay(run_id: str, choice: Choice) -> Seen:
    """The replay of a choice, or what stands between; short jobs are submitted at once."""
    name = titled(choice)
    try:
        return eviction_looks.replayed(run_id, eviction_looks.name_of(choice))
    except NeedsJob as need:
        return _asked(run_id, name, need)
    except (KVScopeError, PolicyError) as error:
        return Pending(name, None, None, str(error))


def live_runs(run_id: str, choices: Sequence[Choice]) -> tuple[tuple[str, ...], list[Pending]]:
    """The names of the choices that were run for real, and what the others wait for."""
    names: list[str] = []
    missing: list[Pending] = []
    for choice in choices:
        shown = titled(choice)
        try:
            name = eviction_looks.name_of(choice)
            eviction_looks.policy_run(run_id, name)
            names.append(name)
        except NeedsJob as need:
            words = f"Run of {shown}" if need.kind == "policy_run" else need.kind.replace("_", " ")
            missing.append(Pending(shown, derive_job(run_id, need.kind, need.spec, words), need))
        except (KVScopeError, PolicyError) as error:
            missing.append(Pending(shown, None, None, str(error)))
    return tuple(names), missing


def is_ready(replayed: Seen) -> TypeGuard[Replayed]:
    return not isinstance(replayed, Pending)


def _asked(run_id: str, name: str, need: NeedsJob) -> Pending:
    words = {"replay": f"Replay of {name}"}.get(need.kind, need.kind.replace("_", " "))
    spec = derive_job(run_id, need.kind, need.spec, words)
    if need.kind in AUTOMATIC:
        state = state_of(spec.id)
        asked: set[str] = st.session_state.setdefault(_ASKED, set())
        if state is None or (state.status == "done" and spec.id not in asked):
            asked.add(spec.id)
            try:
                backstage.jobs().submit(spec)
            except KVScopeError as error:
                return Pending(name, None, need, str(error))
    return Pending(name, spec, need)


def state_of(job_id: str) -> JobState | None:
    """How far a job is, or None where nobody asked for it."""
    return next((job for job in backstage.jobs().jobs() if job.id == job_id), None)


def titled(choice: Choice) -> str:
    """What to call a choice, or the text of one that cannot be."""
    try:
        return title(choice)
    except PolicyError:
        return to_text(choice)


def waiting(
    pending: Pending, *, key: str, height: int | None = None, verb: str = "Record it"
) -> None:
    """In the place of a figure: how far its replay is; the figure follows by itself."""
    with st.container(border=True, gap="xsmall", key=f"waiting-{key}", height=height or "content"):
        st.markdown(f"**{plain(pending.title)}**")
        if pending.job is None or pending.need is None:
            st.caption(plain(pending.error))
            return
        st.session_state[f"{_WHOLE}-{key}"] = True
        state = state_of(pending.job.id)
        every = _BUSY_S if state is not None and not state.finished else _IDLE_S
        st.fragment(run_every=every)(_progress)(pending, key, verb)


def _progress(pending: Pending, key: str, verb: str) -> None:
    spec, need = pending.job, pending.need
    assert spec is not None and need is not None
    whole = st.session_state.pop(f"{_WHOLE}-{key}", False)
    state = state_of(spec.id)
    if state is not None and state.status == "done":
        _arrived(spec, whole)
        return
    if state is not None and not state.finished:
        st.session_state.setdefault(_ASKED, set()).add(spec.id)
        _under_way(state, key)
        return
    if state is None or state.status == "cancelled":
        st.caption(plain(pending.error or need))
    else:
        st.caption(plain(state.error or "The last attempt failed without saying why."))
    label = (
        "Try again" if state is not None else f"{verb} (about {duration(max(1.0, need.seconds))})"
    )
    st.button(label, key=f"ask-{key}", on_click=_submit, args=(spec,))


def _under_way(state: JobState, key: str) -> None:
    """A line of progress and a way out; the title stands above it already."""
    if state.status == "running":
        share = min(1.0, max(0.0, state.done / state.total)) if state.total else 0.0
        left = f", about {duration(state.eta_s)} left" if state.eta_s is not None else ""
        st.progress(share, text=plain(f"{state.phase or 'starting'}{left}"))
    else:
        place = f", number {state.queue_position} in the queue" if state.queue_position else ""
        st.progress(0.0, text=plain(f"waiting{place}"))
    st.button(
        "Cancelling" if state.cancelling else "Cancel",
        key=f"cancel-waiting-{key}",
        disabled=state.cancelling,
        type="tertiary",
        on_click=_cancel,
        args=(state.id,),
    )


def waiting_for(
    pending: Sequence[Pending], title: str, *, key: str, verb: str = "Record them"
) -> None:
    """In the place of what several jobs give: one button for all that is missing, and how far they
    are; what has arrived is shown by the next run of the page."""
    with st.container(border=True, gap="xsmall", key=f"waiting-{key}"):
        st.markdown(f"**{plain(title)}**")
        for one in pending:
            if one.job is None or one.need is None:
                st.caption(plain(f"{one.title}: {one.error}"))
        asked = [one for one in pending if one.job is not None and one.need is not None]
        if asked:
            st.session_state[f"{_WHOLE}-{key}"] = True
            states = [state_of(one.job.id) for one in asked if one.job is not None]
            busy = any(state is not None and not state.finished for state in states)
            every = _BUSY_S if busy else _IDLE_S
            st.fragment(run_every=every)(_progress_of_all)(asked, key, verb)


def _progress_of_all(asked: Sequence[Pending], key: str, verb: str) -> None:
    whole = st.session_state.pop(f"{_WHOLE}-{key}", False)
    jobs = {job.id: job for job in backstage.jobs().jobs()}
    idle: list[Pending] = []
    under_way: list[tuple[str, JobState]] = []
    for one in asked:
        assert one.job is not None
        state = jobs.get(one.job.id)
        if state is not None and state.status == "done":
            _arrived(one.job, whole)
        elif state is not None and not state.finished:
            st.session_state.setdefault(_ASKED, set()).add(one.job.id)
            under_way.append((one.title, state))
        else:
            if state is not None and state.status == "failed":
                st.caption(plain(f"{one.title}: {state.error or 'the last attempt failed.'}"))
            idle.append(one)
    running = [(name, state) for name, state in under_way if state.status == "running"]
    for name, state in running or under_way[:1]:
        share = min(1.0, max(0.0, state.done / state.total)) if state.total else 0.0
        st.progress(share, text=plain(f"{name}: {state.phase or 'waiting'}"))
    if len(under_way) > len(running):
        st.caption(plain(f"{some(len(under_way) - len(running), 'more job')} waiting"))
    if under_way:
        st.button(
            "Cancel",
            key=f"cancel-waiting-{key}",
            type="tertiary",
            on_click=_cancel_all,
            args=([state.id for _, state in under_way],),
        )
    if idle:
        named = [one.title for one in idle[:_NAMED]]
        rest = [f"and {len(idle) - _NAMED:,} more"] if len(idle) > _NAMED else []
        names = "; ".join([*named, *rest])
        seconds = sum(max(1.0, one.need.seconds) for one in idle if one.need is not None)
        st.caption(plain(f"Missing: {names}."))
        st.button(
            f"{verb} (about {duration(seconds)})",
            key=f"ask-{key}",
            on_click=_submit_all,
            args=([one.job for one in idle],),
        )


def all_at_once(pending: Sequence[Pending], *, key: str, verb: str) -> None:
    """One button for everything that was not asked for yet, where that is more than one job."""
    idle = [
        (one.job, one.need)
        for one in pending
        if one.job is not None and one.need is not None and state_of(one.job.id) is None
    ]
    if len(idle) > 1:
        seconds = sum(max(1.0, need.seconds) for _, need in idle)
        st.button(
            f"{verb} all {len(idle)} (about {duration(seconds)})",
            key=f"ask-{key}",
            on_click=_submit_all,
            args=([job for job, _ in idle],),
        )


def _submit_all(specs: Sequence[JobSpec]) -> None:
    for spec in specs:
        _submit(spec)


def _cancel_all(job_ids: Sequence[str]) -> None:
    for job_id in job_ids:
        _cancel(job_id)


def _cancel(job_id: str) -> None:
    with contextlib.suppress(KVScopeError):  # it may have ended meanwhile
        backstage.jobs().cancel(job_id)


def _arrived(spec: JobSpec, whole: bool) -> None:
    """The file is there: one run of the page shows it. Twice for the same job would go on."""
    shown: set[str] = st.session_state.setdefault("replays_shown", set())
    if not whole and spec.id not in shown:
        shown.add(spec.id)
        st.rerun()
    if spec.id in shown:
        st.caption("This was computed, but its file cannot be found beside the run.")
        st.button("Compute it again", key=f"again-{spec.id}", on_click=_submit, args=(spec,))
    else:
        st.caption("Ready.")


def _submit(spec: JobSpec) -> None:
    """From a callback: ask for a job, once more where it has ended."""
    st.session_state.setdefault("replays_shown", set()).discard(spec.id)
    try:
        backstage.jobs().submit(spec)
    except KVScopeError as error:
        st.toast(plain(error))


def short_name(name: str) -> str:
    """A title without its budget, for places where the budget stands beside it."""
    return re.sub(r", (budget \d+(,\d{3})*|[\d.e-]+% evicted)", "", name)
