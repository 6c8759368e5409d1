"""The papers' claims beside what the shipped study measured: verdicts, numbers, and the study."""

from __future__ import annotations

from typing import Any, Literal

import pandas as pd
import streamlit as st

from analysis.figure import Figure, Note
from analysis.study import claim_figures, claims, curves, options
from analysis.study.claims import HOLDS, RECALL, REVERSED, UNSEEN, Claim, Findings, Measured
from backend.sources import resolve
from backend.study.spec import load_spec
from pages.parts import card, selection, study_draft
from pages.parts.text import plain, some

STUDIES = "pages/studies.py"
COMMAND = "python -m bench.findings"
_ICONS = {HOLDS: ":material/check:", REVERSED: ":material/close:", UNSEEN: ":material/remove:"}
_COLOURS: dict[str, Literal["green", "red", "gray"]] = {
    HOLDS: "green",
    REVERSED: "red",
    UNSEEN: "gray",
}
_ROW = 34  # pixels of a comparison in the figure


@st.cache_data(max_entries=2, show_spinner=False)
def _measured(revision: str) -> list[list[Measured]]:
    """All claims' numbers; other results, told by their `revision`, are other numbers."""
    found = claims.load()
    return [found.measured(claim) for claim in claims.claims()]


def link_values() -> dict[str, Any]:
    return {"claim": st.query_params.get("claim")}


def show() -> None:
    """How many claims hold, then each of them; one can be chosen for its figures."""
    found = claims.load()
    every = list(zip(claims.claims(), _measured(found.model_revision), strict=True))
    verdicts = [claims.verdict(measured) for _, measured in every]
    holds, reversed_, unseen = (verdicts.count(word) for word in (HOLDS, REVERSED, UNSEEN))
    st.markdown(
        plain(
            f"Of {some(len(every), 'claim')}, holding: {holds}; not holding: {reversed_}; not to "
            f"be seen at this size: {unseen}."
        )
    )
    _age(found)
    names = [claim.title for claim, _ in every]
    chosen = selection.choice("Claim", "claim", names, names[0])
    _table(every, verdicts)
    claim, measured = every[names.index(chosen)]
    _claim(found, claim, measured)
    notes: dict[str, str | Note] = {"The comparisons": claim_figures.NOTE, "The verdict": _RULE}
    if claim.study == RECALL:
        notes["Recall"] = claim_figures.RECALL_NOTE
    card.how_to_read(notes)
    st.caption(f"`{COMMAND}` runs the whole study again.")


_RULE = (
    "A claim holds when every one of its comparisons has its whole interval above zero, does not "
    "hold when one of them has it below, and cannot be seen at this size otherwise. The embedded "
    "model is very small and its prompts are short: what cannot be seen on it may well hold for a "
    "large model, and what holds on it need not."
)


def _age(found: Findings) -> None:
    """Whether the results belong to the weights that are here."""
    if resolve("demo", weights=False).revision != found.model_revision:
        st.warning(
            "These numbers were measured with other weights than the embedded model has now: "
            f"run `{COMMAND}` again.",
            icon=":material/history:",
        )


def _table(every: list[tuple[Claim, list[Measured]]], verdicts: list[str]) -> None:
    """One row per claim: what is said, the verdict, how many comparisons."""
    rows = [
        {
            "claim": claim.title,
            "paper": claim.source,
            "here": word,
            "comparisons that hold": sum(one.verdict == HOLDS for one in measured),
            "reversed": sum(one.verdict == REVERSED for one in measured),
            "of": len(measured),
        }
        for (claim, measured), word in zip(every, verdicts, strict=True)
    ]
    table = pd.DataFrame(rows)
    with st.container(border=True, gap="xsmall", key="card-findings"):
        st.dataframe(table, hide_index=True, placeholder="", alt="Every claim with its verdict")
        card.actions(lambda: table, key="findings", name="findings", link_values=link_values())


def _claim(found: Findings, claim: Claim, measured: list[Measured]) -> None:
    word = claims.verdict(measured)
    st.subheader(plain(claim.title), anchor=False)
    with st.container(horizontal=True, vertical_alignment="center"):
        st.badge(word, icon=_ICONS[word], color=_COLOURS[word])
        st.markdown(plain(f"{claim.said} ({claim.source})"))
    if claim.note:
        st.caption(plain(claim.note))
    figure = claim_figures.forest(claim.title, measured, claim.source)
    card.figure_card(
        figure, key="forest", link_values=link_values(), height=170 + _ROW * len(measured)
    )
    _numbers(found, claim, measured)


def _numbers(found: Findings, claim: Claim, measured: list[Measured]) -> None:
    table = pd.DataFrame(
        [
            {
                "comparison": one.comparison.words,
                "first": one.better,
                "second": one.worse,
                "difference": one.difference,
                "95% from": one.low,
                "to": one.high,
                "evicted, first": one.better_evicted,
                "evicted, second": one.worse_evicted,
                "prompts": one.prompts,
                "here": one.verdict + (f": {one.reason}" if one.reason else ""),
            }
            for one in measured
        ]
    ).dropna(axis="columns", how="all")
    floats = [str(name) for name in table.select_dtypes("float64")]
    with st.container(border=True, gap="xsmall", key="card-numbers"):
        st.dataframe(
            table,
            hide_index=True,
            placeholder="",
            column_config={
                name: st.column_config.NumberColumn(name, format="%.3f") for name in floats
            },
            alt="Every comparison with its numbers",
        )
        card.actions(lambda: table, key="numbers", name="finding", link_values=link_values())
    if claim.study == RECALL:
        _figures([claim_figures.recall_over_offsets(found.recall)])
        return
    st.caption(plain(found.basis(claim.study)))
    study = found.studies[claim.study]
    if any(place.size is not None for place in study.places[1:]):
        _figures([curves.over_size(study)])
    else:
        kept = options.KEPT_PER_LAG
        varied = [key for key, names in options.varied(study).items() if kept in names]
        _figures([options.over_option(study, key, kept) for key in varied])
    st.button(
        "Run this study here",
        icon=":material/science:",
        key="run-finding",
        help=f"{some(len(study.examples), 'prompt')}; the form can be changed before it starts.",
        on_click=_run_here,
        args=(claim.study,),
    )
    if st.session_state.pop("finding_opened", False):
        st.switch_page(STUDIES, query_params={"study": "new"})


def _figures(figures: list[Figure]) -> None:
    """What the comparisons are taken from."""
    with st.grid(min(2, len(figures)), min_column_width=440, gap="small"):
        for index, figure in enumerate(figures):
            card.figure_card(
                figure, key=f"finding-curve-{index}", link_values=link_values(), height=360
            )


def _run_here(name: str) -> None:
    """Take the shipped specification into the form of a new study."""
    spec, _ = load_spec(claims.FOLDER / f"{name}.toml")
    study_draft.replace(spec.to_dict())
    st.session_state["finding_opened"] = True
