"""At which budget does each policy lose the evidence: the policies replayed at several budgets."""

from __future__ import annotations

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from analysis.errors import NeedsJob
from analysis.figure import Note
from backend.jobs import JobSpec, derive_job
from cache_store.errors import KVScopeError
from kvpolicies import PolicyError
from pages.parts import (
    backstage,
    card,
    drawn,
    eviction_looks,
    policy_replays,
    policy_slots,
)
from pages.parts import eviction_view as view
from pages.parts.eviction_view import Look
from pages.parts.policy_slots import Budget, Choice
from pages.parts.text import duration, number, plain, some

SHARES = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4)  # of the prompt
SMALLEST = 4
_HEADS = "in at least half of all layers and heads, there and at every larger budget looked at."
KEEPS = {  # columns of `budget_of_loss`: label and meaning
    "keeps_all": ("keeps all of it from", f"All of the span's entries {_HEADS}"),
    "keeps_half": ("half of it from", f"At least half of the span's entries {_HEADS}"),
}
_SEEN = "sweep_seen"


def show(look: Look, span: tuple[int, int], beside: DeltaGenerator) -> Note | None:
    """Survival over the budget, or the offer to replay what is missing; `beside` gets the table of
    the budgets at which each policy loses the span."""
    policies = [choice for choice in look.chosen if policy_slots.takes_budget(choice)]
    if not policies:
        st.caption("None of these policies takes a budget.")
        return None
    wanted = {policy: _at_budgets(look, choice) for policy, choice in enumerate(policies)}
    missing = [name for names in wanted.values() for name in names if not _there(look, name)]
    there = tuple(tuple(name for name in names if _there(look, name)) for names in wanted.values())
    there = tuple(names for names in there if names)
    note = None
    if any(len(names) > 1 for names in there):
        note = _figures(look, there, span, beside)
    if missing:
        _offer(look, tuple(missing), sum(len(names) for names in wanted.values()))
    return note


def budgets(prompt_length: int) -> list[int]:
    """The budgets looked at, in entries; small prompts have fewer."""
    sizes = (max(SMALLEST, int(share * prompt_length)) for share in SHARES)
    return sorted({size for size in sizes if size < prompt_length})


def _at_budgets(look: Look, choice: Choice) -> list[str]:
    """One policy at every budget and at the chosen one, by the names the caches know."""
    options = dict(choice.get("options") or {})
    for own in ("budget", "compression_ratio", "keep_ratio"):
        options.pop(own, None)
    free = {**choice, "options": options}
    sizes = sorted({*budgets(look.info.prompt_length), look.budget.entries(look.info)})
    chosen = [policy_slots.with_budget(free, Budget("entries", size), look.info) for size in sizes]
    names = []
    for item in chosen:
        try:
            names.append(eviction_looks.name_of(item))
        except PolicyError:
            continue
    return names


def _there(look: Look, name: str) -> bool:
    return eviction_looks.is_replayed(look.run_id, name)


def _figures(
    look: Look, names: tuple[tuple[str, ...], ...], span: tuple[int, int], beside: DeltaGenerator
) -> Note | None:
    figure = eviction_looks.survival_over_budget(look.run_id, names, span, look.step)
    card.figure_card(figure, key="over-budget", link_values=look.link(), height=view.HEIGHT)
    table = eviction_looks.budget_of_loss(look.run_id, names, span, look.step)
    with beside, st.container(border=True, gap="xsmall", key="card-loss"):
        st.markdown("**The smallest budget that still keeps the evidence**")
        st.dataframe(
            pd.DataFrame(
                {
                    "policy": table["policy"],
                    **{name: _smallest(table, name) for name in KEEPS},
                    "smallest": table["smallest"],
                    "largest": table["largest"],
                }
            ),
            hide_index=True,
            placeholder="",
            alt="The smallest budget that keeps the evidence, one row per policy",
            column_config={
                "policy": st.column_config.TextColumn(pinned=True),
                **{
                    name: st.column_config.TextColumn(label, help=words)
                    for name, (label, words) in KEEPS.items()
                },
                **{
                    name: st.column_config.NumberColumn(f"{name} tried", format="localized")
                    for name in ("smallest", "largest")
                },
            },
        )
        card.actions(lambda: table, key="loss", name="budget-of-loss", link_values=look.link())
    return figure.note


def _smallest(table: pd.DataFrame, name: str) -> list[str]:
    """The budget, or that not even the largest one is enough."""
    return [
        f"more than {number(most)}" if pd.isna(least) else number(least)
        for least, most in zip(table[name], table["largest"], strict=True)
    ]


def _offer(look: Look, missing: tuple[str, ...], total: int) -> None:
    with st.container(border=True, gap="xsmall", key="card-sweep"):
        st.markdown("**At which budget is the evidence lost?**")
        specs, seconds, refused = _jobs(look, missing)
        for sentence in refused:
            st.caption(plain(sentence))
        if specs:
            _progress(look.run_id, missing, specs, seconds, total)


def _jobs(look: Look, missing: tuple[str, ...]) -> tuple[list[JobSpec], float, list[str]]:
    """The replays to ask for, their time, and what stands in the way of others."""
    specs, seconds, refused = [], 0.0, []
    for name in missing:
        try:
            eviction_looks.replayed(look.run_id, name)
        except NeedsJob as need:
            if need.kind != "replay":
                refused.append(str(need))
                continue
            words = policy_replays.titled(need.spec["policy"])
            specs.append(derive_job(look.run_id, need.kind, need.spec, f"Replay of {words}"))
            drawn.tell_job(specs[-1], need)
            seconds += need.seconds
        except KVScopeError as error:
            refused.append(str(error))
    return specs, seconds, list(dict.fromkeys(refused))


@st.fragment(run_every=1.0)
def _progress(
    run_id: str, missing: tuple[str, ...], specs: list[JobSpec], seconds: float, total: int
) -> None:
    states = {job.id: job for job in backstage.jobs().jobs()}
    asked = [states[spec.id] for spec in specs if spec.id in states]
    under_way = [job for job in asked if not job.finished]
    failed = [job for job in asked if job.status in ("failed", "lost", "cancelled")]
    now_there = sum(eviction_looks.is_replayed(run_id, name) for name in missing)
    known = (run_id, missing, now_there)
    if not under_way and now_there and st.session_state.get(_SEEN) != known:
        st.session_state[_SEEN] = known
        st.rerun()
    if under_way:
        done = total - len(missing) + now_there
        st.progress(done / total, text=f"{number(done)} of {some(total, 'replay')}")
        return
    for sentence in dict.fromkeys(job.error for job in failed if job.error):
        st.caption(plain(sentence))
    fresh = [spec for spec in specs if spec.id not in states]
    again = fresh or specs
    label = "Replay at more budgets" if fresh else "Try again"
    st.button(
        f"{label} (about {duration(max(1.0, seconds))})",
        key="sweep",
        on_click=_submit,
        args=(again,),
    )


def _submit(specs: list[JobSpec]) -> None:
    """From a callback: ask for every missing replay."""
    for spec in specs:
        try:
            backstage.jobs().submit(spec)
        except KVScopeError as error:
            st.toast(plain(error))
            return
