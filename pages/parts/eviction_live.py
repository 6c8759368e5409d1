"""The panel "Run it for real": the model's answer under each policy and with the full cache."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

import streamlit as st

from analysis.errors import NeedsJob
from analysis.figure import Figure, Note
from analysis.live import LIVE_COLUMNS
from backend.jobs import derive_job
from cache_store.errors import KVScopeError
from pages.parts import card, eviction_looks, eviction_tables, policy_replays
from pages.parts.eviction_view import Look
from pages.parts.policy_replays import Pending
from pages.parts.text import plain

if TYPE_CHECKING:
    from analysis.replays import PolicyRun
    from analysis.responses import ResponseDiff

HEIGHT = 320
RUN_WORDS = (
    "The model answers the prompt again with this policy deciding what stays in its cache, with "
    "the settings and seed of the run; the full cache is timed beside it."
)
_STYLE = """<style>
.kv-diff {white-space: pre-wrap; line-height: 1.55; max-height: 16rem; overflow-y: auto;}
.kv-diff del {color: #B23A00; background: rgba(213,94,0,.14); text-decoration: line-through;}
.kv-diff ins {color: #00684B; background: rgba(0,158,115,.16); text-decoration: underline;}
.kv-dark del {color: #FFA66B;} .kv-dark ins {color: #5FDDB5;}
</style>"""


def show(look: Look) -> dict[str, str | Note]:
    """Draw the panel; returns the words below it."""
    notes: dict[str, str | Note] = {}
    found = [_run(look, dict(choice)) for choice in look.choices]
    missing = [one for one in found if isinstance(one, Pending)]
    policy_replays.all_at_once(missing, key="live-all", verb="Run")
    names: list[str] = []
    with st.grid(2, min_column_width=440):
        for index, (choice, run) in enumerate(zip(look.choices, found, strict=True)):
            if isinstance(run, Pending):
                policy_replays.waiting(run, key=f"live-{index}", verb="Run it")
                continue
            names.append(eviction_looks.name_of(choice))
            diff = eviction_looks.response_diff(look.run_id, names[-1])
            _diff(look, index, run, diff)
            notes["The response"] = diff.note
    if names:
        _summary(look, tuple(names))
        figures = _figures(look, tuple(names))
        notes |= {name: figure.note for name, figure in figures.items() if figure.note}
    return notes


def _run(look: Look, choice: dict[str, object]) -> PolicyRun | Pending:
    """A live run that is there; otherwise the job that makes it, or why there can be none."""
    name = policy_replays.titled(choice)
    try:
        return eviction_looks.policy_run(look.run_id, eviction_looks.name_of(choice))
    except NeedsJob as need:
        words = {"policy_run": f"Run of {name}"}.get(need.kind, need.kind.replace("_", " "))
        spec = derive_job(look.run_id, need.kind, need.spec, words)
        words = RUN_WORDS if need.kind == "policy_run" else ""
        return Pending(name, spec, need, words)
    except KVScopeError as error:
        return Pending(name, None, None, str(error))


def _diff(look: Look, index: int, run: PolicyRun, diff: ResponseDiff) -> None:
    """Both responses as one text: struck what only the full cache said, underlined what is new."""
    with st.container(border=True, gap="xsmall", key=f"card-diff-{index}"):
        st.markdown(f"**{plain(run.title)}**")
        theme = "kv-dark" if card.theme() == "dark" else ""
        marked = "".join(
            _marked("del", part.full) + _marked("ins", part.policy)
            if part.kind != "agrees"
            else html.escape("".join(part.full))
            for part in diff.parts
        )
        st.html(f'{_STYLE}<div class="kv-diff {theme}" aria-label="{_alt(diff)}">{marked}</div>')
        st.caption(plain(diff.caption))
        card.actions(
            diff.table, key=f"diff-{index}", name=f"response-{index + 1}", link_values=look.link()
        )


def _marked(tag: str, pieces: tuple[str, ...]) -> str:
    text = html.escape("".join(pieces))
    return f"<{tag}>{text}</{tag}>" if text else ""


def _alt(diff: ResponseDiff) -> str:
    return html.escape(diff.alt, quote=True)


def _summary(look: Look, names: tuple[str, ...]) -> None:
    table = eviction_looks.live_summary(look.run_id, names)
    with st.container(border=True, gap="xsmall", key="card-live"):
        st.markdown("**Against the full cache, measured**")
        st.dataframe(
            table,
            hide_index=True,
            placeholder="",
            alt=f"Agreement, KL, bytes and latency of {len(table)} live runs",
            column_config={
                key: eviction_tables.column(label, unit, table[key])
                for key, (label, unit) in LIVE_COLUMNS.items()
                if key in table.columns
            },
        )
        card.actions(lambda: table, key="live", name="live-runs", link_values=look.link())


def _figures(look: Look, names: tuple[str, ...]) -> dict[str, Figure]:
    figures = {
        "Drift": eviction_looks.live(look.run_id, "kl_over_steps", names, step=look.step),
        "Cache size": eviction_looks.live(
            look.run_id, "cache_bytes_over_steps", names, step=look.step
        ),
        "Latency": eviction_looks.live(look.run_id, "latency_over_steps", names, step=look.step),
        "Latency by stage": eviction_looks.live(look.run_id, "latency_by_stage", names),
    }
    with st.grid(2, min_column_width=440):
        for name, figure in figures.items():
            key = f"live-{name.lower().replace(' ', '-')}"
            card.figure_card(figure, key=key, link_values=look.link(), height=HEIGHT)
    return figures
