"""The panel "Why and what it cost": scores and the cut, attention lost, regret, and the errors.

Every policy is read against the oracle and random eviction at its own budget and schedule; the
references drawn are those of the policy in focus, the table holds every policy's distance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from analysis.costs import REGRETS, SUMMARY_COLUMNS, oracle_choice, random_choice
from analysis.figure import Figure, Note
from analysis.rows import MEAN, Selection
from pages.parts import card, eviction_looks, eviction_tables, policy_replays, selection
from pages.parts import eviction_view as view
from pages.parts.eviction_view import Look
from pages.parts.policy_replays import Pending
from pages.parts.text import plain

if TYPE_CHECKING:
    from analysis.replays import Replayed
    from pages.parts.policy_replays import Seen

OVER = ("all layers and heads", "this layer", "this head")
REGRET_WORDS = {words: key for key, (words, _) in REGRETS.items()}
HEIGHT = 440  # six lines have a legend of six rows


def show(look: Look) -> dict[str, str | Note]:
    """Draw the panel; returns the words below it."""
    view.pending(look)
    if not look.ready:
        return {}
    focus, layer, head, regret = _controls(look)
    references = _references(look, look.ready)
    mine = _references(look, [focus])
    shown = _once([*look.ready, *_there(mine)])
    _waiting(references)
    _summary(look, [*look.ready, *_there(references)])
    names = tuple(eviction_looks.name_of(policy.choice) for policy in shown)
    figures = {
        "Attention mass kept": _cost(look, "mass_kept", names, layer, head, step=look.step),
        "Regret": _cost(
            look, "regret_over_steps", names, layer, head, measure=regret, step=look.step
        ),
        "Output error": _cost(look, "output_error_by_layer", names),
        "Recall": _cost(look, "recall", names, layer, head, step=look.step),
        "Recall by layer": _cost(look, "recall_by_layer", names, head),
    }
    oracle = next((item for item in _there(mine) if item.choice.get("key") == "oracle"), None)
    if oracle is not None:
        figures["Distance to the oracle"] = eviction_looks.distance(
            look.run_id, names, eviction_looks.name_of(oracle.choice), layer, look.step
        )
    with st.grid(2, min_column_width=440):
        for name, figure in figures.items():
            key = f"cost-{name.lower().replace(' ', '-')}"
            card.figure_card(figure, key=key, link_values=look.link(), height=HEIGHT)
        scores = _scores(look, focus)
        _regretted(look, focus, layer, head)
    notes: dict[str, str | Note] = {}
    for name, figure in {**figures, "Scores": scores}.items():
        if figure.note and figure.note not in notes.values():
            notes[name] = figure.note
    return notes


def _controls(look: Look) -> tuple[Replayed, Selection, Selection, str]:
    """Whose decision, over which heads, and which regret."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        focus = view.focus(look, "Decision and references of")
        over = selection.segment("Lines over", "over", OVER)
        words = list(REGRET_WORDS)
        regret = selection.choice("Regret", "regret", words, words[0], width=220)
    layer: Selection = MEAN if over == OVER[0] else look.layer
    head: Selection = look.kv_head if over == OVER[2] else MEAN
    return focus, layer, head, REGRET_WORDS[regret]


def _title(policy: Replayed) -> str:
    return policy_replays.short_name(policy.title)


def _cost(
    look: Look, figure: str, names: tuple[str, ...], *chosen: object, **more: object
) -> Figure:
    return eviction_looks.cost(look.run_id, figure, names, *chosen, **more)


def _references(look: Look, policies: list[Replayed]) -> list[Seen]:
    """The oracle and random at the budget and schedule of each policy, every one once."""
    seen: dict[str, Seen] = {}
    for policy in policies:
        for reference in (oracle_choice, random_choice):
            choice = reference(policy.choice, policy.facts.get("realised_budget"))
            if choice is not None:
                name = eviction_looks.name_of(choice)
                seen.setdefault(name, policy_replays.replay(look.run_id, choice))
    return list(seen.values())


def _there(seen: list[Seen]) -> list[Replayed]:
    return [item for item in seen if policy_replays.is_ready(item)]


def _once(policies: list[Replayed]) -> list[Replayed]:
    """Each policy once: the reader may have chosen a reference as a policy."""
    return list({eviction_looks.name_of(policy.choice): policy for policy in policies}.values())


def _waiting(references: list[Seen]) -> None:
    for index, item in enumerate(references):
        if isinstance(item, Pending):
            policy_replays.waiting(item, key=f"reference-{index}")
            return  # one after the other: their figures are already there without them


def _summary(look: Look, policies: list[Replayed]) -> None:
    """One row per chosen policy, the references behind them."""
    names = tuple(eviction_looks.name_of(policy.choice) for policy in _once(policies))
    table = eviction_looks.cost_summary(look.run_id, names)
    with st.container(border=True, gap="xsmall", key="card-summary"):
        st.markdown("**What each policy cost, against the full cache**")
        st.dataframe(
            table,
            hide_index=True,
            placeholder="",
            alt=f"What {len(table)} policies cost: budget, bytes, mass kept, recall and regret",
            column_config={
                key: eviction_tables.column(column.label, column.unit, table[key], column.help)
                for key, column in SUMMARY_COLUMNS.items()
            },
        )
        card.actions(lambda: table, key="summary", name="costs", link_values=look.link())


def _scores(look: Look, focus: Replayed) -> Figure:
    """How close the decision was: the scores of the chosen head with the cut."""
    name = eviction_looks.name_of(focus.choice)
    figure = eviction_looks.score_distribution(
        look.run_id, name, look.layer, look.kv_head, look.step
    )
    card.figure_card(figure, key="scores", link_values=look.link(), height=HEIGHT)
    return figure


def _regretted(look: Look, focus: Replayed, layer: Selection, head: Selection) -> None:
    """The ten evictions that later steps would have needed most, as text in its context."""
    name = eviction_looks.name_of(focus.choice)
    table = eviction_looks.most_regretted(look.run_id, name, layer, head)
    with st.container(border=True, gap="xsmall", key="card-regretted"):
        st.markdown(f"**The most regretted evictions of {plain(_title(focus))}**")
        if table.empty:
            st.caption("Nothing that was evicted would have been attended to later.")
            return
        text = table["before"] + "⟦" + table["token"] + "⟧" + table["after"]
        st.dataframe(
            table.assign(text=text)[
                ["position", "text", "regret", "missed", "heads", "evicted_at", "reason"]
            ],
            hide_index=True,
            placeholder="",
            height=HEIGHT - 40,
            alt=f"The {len(table)} evicted positions with the largest regret, with their text",
            column_config={
                "position": st.column_config.NumberColumn("Position", format="localized", width=65),
                "text": st.column_config.TextColumn("In its context", width=230),
                "regret": st.column_config.NumberColumn(
                    "Regret", help="attention mass of later steps", format="%.3g", width=65
                ),
                "missed": st.column_config.NumberColumn(
                    "Missed", help="recurrences missed", format="localized", width=65
                ),
                "heads": st.column_config.NumberColumn(
                    "Heads", help="how many of them lost it", width=55
                ),
                "evicted_at": st.column_config.NumberColumn(
                    "Gone at", help="the step, in the head that regrets it most", width=60
                ),
                "reason": st.column_config.TextColumn("Reason", width=80),
            },
        )
        card.actions(lambda: table, key="regretted", name="regretted", link_values=look.link())
