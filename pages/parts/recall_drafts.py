"""The Recall page's drafts: recording them, what they are worth, and what their time is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from analysis.errors import NeedsJob
from analysis.figure import Figure
from analysis.lookaheads import draft_name, lookahead
from analysis.recall import WIDTH
from backend.jobs import derive_job
from cache_store.errors import KVScopeError
from cache_store.reader import CaptureInfo
from kvpolicies import PolicyError, catalogue
from pages.parts import backstage, eviction_looks, looks_recall, paper_view, policy_replays
from pages.parts import selection as chosen
from pages.parts.policy_replays import Pending
from pages.parts.text import plain, shorten

if TYPE_CHECKING:
    from pages.parts.policy_slots import Choice
    from pages.parts.recall_view import Look

DRAFTED_ON = ("snapkv", "streaming_llm", "h2o", "tova", "pyramidkv", "knorm", "full")
COMPARED = 4  # drafts in one figure
NOT_RECORDED = "This draft is not recorded yet"
QUALITY = ("snapkv", "streaming_llm", "h2o")  # policies whose drafts are compared over budgets
PARTS = (32, 16, 8, 4)  # of the prompt: the budgets of those drafts
# Whose stages the latency compares: LAQ's Figure 6 has 2 and 8 steps.
MEASURED: tuple[tuple[str, dict[str, int]], ...] = (
    ("snapkv", {}),
    ("laq", {"lookahead_steps": 2}),
    ("laq", {}),
    ("laq_pp", {}),
)


def asked(info: CaptureInfo) -> tuple[Choice, int]:
    """The URL's draft: the policy of the small cache with its budget, and how many tokens; by
    default the run's first."""
    key = _drafted_on(info)
    size, count = (_asked(*of) for of in _draft_numbers(info))
    return _choice(key, size), count


def shown(runs: tuple[str, ...], draft: tuple[Choice, int]) -> tuple[str, ...]:
    """Names of the drafts that the figures show: the chosen one, where it is recorded, and those
    it is compared with."""
    recorded = looks_recall.drafted(runs)
    wanted = [draft_name(*draft), *st.query_params.get_all("compared")]
    if set(wanted[1:]) - set(recorded):
        chosen.notice("compared", "The address compares drafts that this run does not have.")
    else:
        chosen.forget_notice("compared")
    return tuple(dict.fromkeys(name for name in wanted if name in recorded))[: COMPARED + 1]


def card(look: Look) -> None:
    """A draft on a small cache: which policy, budget and length; one button records it."""
    names = {key: method.title for key, method in catalogue().items()}
    with st.container(border=True, gap="xsmall", key="card-drafts"):
        st.markdown("**Lookahead responses (dashed)**")
        with st.container(horizontal=True, vertical_alignment="bottom"):
            st.selectbox(
                "Drafted on a cache of",
                DRAFTED_ON,
                format_func=lambda policy: names[policy],
                key="recall_draft",
                on_change=paper_view.hold("drafter", "recall_draft", look.draft[0]["key"]),
                width=210,
            )
            numbers = _draft_numbers(look.info)
            _number("Its budget", *numbers[0])
            _number("Tokens", *numbers[1])
            _compared(look)
        recorded = looks_recall.named(look.run_id)  # of several runs, this one's are quoted
        for draft in (recorded[name] for name in look.drafts if name in recorded):
            st.caption(plain(f"{draft.title}: “{''.join(draft.texts)}”"))
        _offer(look)


def _compared(look: Look) -> None:
    """Which other recorded drafts are drawn as well."""
    own = draft_name(*look.draft)
    others = {name: made.title for name, made in looks_recall.drafted(look.runs).items()}
    others.pop(own, None)
    if not others:
        return
    now = [name for name in look.drafts if name != own]
    st.multiselect(
        "Compared with",
        list(others),
        format_func=lambda name: others.get(name, name),
        key="recall_compared",
        max_selections=COMPARED,
        on_change=paper_view.hold("compared", "recall_compared", now),
        placeholder="This draft alone",
        width=340,
    )


def _number(label: str, key: str, usual: int, last: int) -> int:
    highest = max(2, last)
    asked = _asked(key, usual, last)
    widget = f"recall_{key}"
    st.number_input(
        label,
        1,
        highest,
        key=widget,
        on_change=paper_view.hold(key, widget, asked),
        width=130,
    )
    return asked


def _asked(key: str, usual: int, last: int) -> int:
    """The URL's value of one of the draft's numbers."""
    highest = max(2, last)
    text = paper_view.held(
        key,
        str(usual),
        lambda value: chosen.is_step(value, 1, highest),
        f"it goes from 1 to {highest:,}",
    )
    return int(text)


def _usual(info: CaptureInfo) -> tuple[str, int, int]:
    """Policy, budget and length of the draft that was recorded first, of those the fields can
    name; without one what the paper takes."""
    for name, made in looks_recall.named(info.id).items():
        key, options = made.spec["policy"]["key"], made.spec["policy"]["options"]
        usual = key, int(options.get("budget", _quarter(info))), int(made.spec["steps"])
        if key in DRAFTED_ON and name == draft_name(_choice(key, usual[1]), usual[2]):
            return usual
    return DRAFTED_ON[0], _quarter(info), WIDTH


def _quarter(info: CaptureInfo) -> int:
    return max(1, info.prompt_length // 4)


def _choice(key: str, size: int) -> Choice:
    return {"key": key, "options": {} if key == "full" else {"budget": size}}


def _drafted_on(info: CaptureInfo) -> str:
    """The URL's policy of the draft's cache."""
    return paper_view.held(
        "drafter",
        _usual(info)[0],
        lambda key: key in DRAFTED_ON,
        f"it is one of {', '.join(DRAFTED_ON)}",
    )


def _draft_numbers(info: CaptureInfo) -> tuple[tuple[str, int, int], ...]:
    """Address, default and largest value of the draft's budget and length."""
    _, size, steps = _usual(info)
    return ("draft_budget", size, info.prompt_length), ("draft_steps", steps, 16)


def _offer(look: Look) -> None:
    """What is missing of the chosen draft, of every run that is pooled; one button records it."""
    missing = []
    for run in look.runs:
        try:
            lookahead(backstage.capture(run), *look.draft)
        except (KVScopeError, PolicyError) as error:
            title = NOT_RECORDED if len(look.runs) == 1 else backstage.library().title(run)
            missing.append(paper_view.pending(error, title, run))
    if len(look.runs) > 1 and missing:
        counted = f"{NOT_RECORDED} in {len(missing)} of {len(look.runs)} runs"
        policy_replays.waiting_for(missing, counted, key="draft")
    elif missing:
        policy_replays.waiting(missing[0], key="draft")


def quality(look: Look) -> Figure | None:
    """Recall over the policy and budget of the drafts' caches; the missing ones at one press."""
    steps = look.draft[1]
    sizes = sorted({max(1, look.info.prompt_length // part) for part in PARTS})
    wanted: list[Choice] = [
        {"key": key, "options": {"budget": size}} for key in QUALITY for size in sizes
    ]
    missing = [
        _pending(run, choice, steps, title=len(look.runs) > 1)
        for run in look.runs
        for choice in wanted
        if draft_name(choice, steps) not in looks_recall.named(run)
    ]
    with st.container():
        figure = None
        if len(missing) < len(wanted) * len(look.runs) or _has_drafts(look, steps):
            figure = paper_view.attempt(
                lambda: looks_recall.recall_over_draft_budget(
                    look.runs, look.budget, look.weighting, look.window, steps
                ),
                title="Recall by the budget of the draft's cache",
                key="recall-quality",
                run_id=look.run_id,
                link=look.link(),
            )
        if missing:
            title = f"Drafts of {steps} tokens on smaller and larger caches"
            policy_replays.waiting_for(missing, title, key="quality")
    return figure


def _has_drafts(look: Look, steps: int) -> bool:
    return any(
        made.spec["steps"] == steps and "budget" in made.spec["policy"].get("options", {})
        for made in looks_recall.drafted(look.runs).values()
    )


def _pending(run_id: str, choice: Choice, steps: int, *, title: bool) -> Pending:
    """A draft that is not recorded; `title` names its run as well."""
    name = f"{catalogue()[choice['key']].title} {choice['options']['budget']:,}"
    if title:
        name += f" of {shorten(backstage.library().title(run_id), 24)}"
    try:
        lookahead(backstage.capture(run_id), choice, steps)
    except NeedsJob as need:
        job = derive_job(run_id, need.kind, need.spec, f"Lookahead on {name}")
        return Pending(name, job, need)
    except (KVScopeError, PolicyError) as error:
        return Pending(name, None, None, str(error))
    return Pending(name, None, None, "It is recorded, but was not found; open the page again.")


def latency(look: Look) -> Figure | None:
    """Measured seconds by stage of LAQ, LAQ++ and SnapKV; what is missing is one press away."""
    choices = [
        {"key": key, "options": {"budget": look.budget, **options}} for key, options in MEASURED
    ]
    names, missing = policy_replays.live_runs(look.run_id, choices)
    with st.container():
        figure = None
        if names:
            figure = paper_view.attempt(
                lambda: eviction_looks.live(look.run_id, "latency_by_stage", names),
                title="Time by stage",
                key="recall-latency",
                run_id=look.run_id,
                link=look.link(),
            )
        if missing:
            title = "Time of prefill, lookahead, eviction and decoding"
            policy_replays.waiting_for(missing, title, key="stages", verb="Run them for real")
    return figure
