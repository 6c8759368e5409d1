"""The prompts behind a point: their scores and responses, and from one of them to its own run."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pandas as pd
import streamlit as st

from analysis.study.rows import ALL_TASKS, FULL, Study
from backend.jobs import capture_job
from backend.spec import NEED_A_PASS, CaptureSpec
from cache_store.errors import KVScopeError
from kvpolicies.choice import canonical, from_text, passes_of, to_text
from kvpolicies.methods import catalogue
from pages.parts import backstage, jobs_view, study_list, study_look
from pages.parts.text import number, plain, shorten

EVICTION = "pages/eviction.py"
_SHOWN = ("example_id", "task", "score", "agreement", "nll", "kl", "response", "error")
_PROMPT_SHOWN = 6_000  # characters


def show(
    study: Study,
    policy: str,
    size: float | None,
    task: str,
    what: str,
    cell: tuple[str, list[str]] | None = None,
) -> None:
    """The rows of one policy at one size, and the prompt that is chosen among them.

    cell: the words of a needle cell and its prompts, where only those are shown.
    """
    rows = study.placed
    rows = rows[rows["place"] == study.place(policy, size)]
    if task != ALL_TASKS:
        rows = rows[rows["task"] == task]
    rows = rows.sort_values("score", kind="stable").reset_index(drop=True)
    if cell is not None:
        what = f"{what}, {cell[0]}"
        rows = rows[rows["example_id"].isin(cell[1])].reset_index(drop=True)
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(f"**{plain(what)}**: the lowest scores come first", width="content")
        if cell is not None:
            st.button(
                "Every depth and length",
                icon=":material/close:",
                type="tertiary",
                key="study-cell-forget",
                on_click=study_look.forget_cell,
            )
    if rows.empty:
        st.caption("No prompt of this kind is finished yet.")
        return
    chosen = _table(rows, f"{study.id}-{policy}-{size}-{task}-{cell and cell[0]}")
    asked = st.query_params.get("example")
    example_id = chosen or (asked if asked in set(rows["example_id"]) else None)
    if example_id is None:
        st.caption("Tick a row to read its prompt and both responses.")
        return
    st.query_params["example"] = example_id
    _prompt(study, rows[rows["example_id"] == example_id].iloc[0])


def _table(rows: pd.DataFrame, key: str) -> str | None:
    told = [name for name in _SHOWN if rows[name].notna().any()]
    event: Any = st.dataframe(
        rows[told],
        hide_index=True,
        placeholder="",
        height=min(320, 36 * (len(rows) + 1) + 4),
        on_select="rerun",
        selection_mode="single-row",
        key=f"study-prompts-{key}",
        column_config={
            name: st.column_config.NumberColumn(name, format="%.3f")
            for name in ("score", "agreement", "nll", "kl")
        },
        alt="Prompts with their scores and responses",
    )
    picked = event.selection.rows
    return str(rows["example_id"].iloc[picked[0]]) if picked else None


def _prompt(study: Study, row: pd.Series) -> None:
    """The prompt, its references, and what the full cache and the policy answered."""
    example = study_list.reader(study.id).example(str(row["example_id"]))
    of_example = study.frame[study.frame["example_id"] == row["example_id"]]
    full = of_example[of_example["policy_key"] == FULL]
    with st.container(border=True, gap="xsmall", key="card-study-prompt"):
        st.markdown(f"**{plain(row['example_id'])}**")
        facts = [f"{number(row['prompt_tokens'])} tokens"]
        if not pd.isna(row["depth"]):
            facts.append(f"fact at {row['depth']:.0%} of the context")
        if example["answers"]:
            facts.append(f"reference: {shorten(' · '.join(example['answers']), 120)}")
        st.caption(plain(" · ".join(facts)))
        left, right = st.columns(2, gap="small")
        with left:
            st.caption(f"Full cache{_scored(full)}")
            st.code(_text(full), language=None, wrap_lines=True)
        with right:
            st.caption(plain(f"{row['policy']}{_scored(row.to_frame().T)}"))
            st.code(str(row["response"] or row["error"] or ""), language=None, wrap_lines=True)
        with st.expander("The prompt"):
            text = example["context"] + example["question"]
            if len(text) > _PROMPT_SHOWN:
                half = _PROMPT_SHOWN // 2
                text = (
                    f"{text[:half]}\n… {len(text) - _PROMPT_SHOWN:,} characters …\n{text[-half:]}"
                )
            st.code(text, language=None, wrap_lines=True, height=260)
        _capture(study, example, row)


def _scored(rows: pd.DataFrame) -> str:
    if rows.empty or pd.isna(rows["score"].iloc[0]):
        return ""
    return f", score {number(float(rows['score'].iloc[0]))}"


def _text(rows: pd.DataFrame) -> str:
    return "" if rows.empty else str(rows["response"].iloc[0])


def _capture(study: Study, example: dict[str, Any], row: pd.Series) -> None:
    """One button to capture the prompt; once it is a run, the way to its Eviction page."""
    source = f"study {study.id}, {example['example_id']}"
    title = f"{example['example_id']} of {shorten(study.title, 40)}"
    made = _run_from(source, title)
    choice, query = _choice(study, row)
    with st.container(horizontal=True, vertical_alignment="center"):
        if made is not None:
            st.page_link(
                EVICTION,
                label="Open on the Eviction page",
                icon=":material/content_cut:",
                query_params={"run": made, **query},
            )
            return
        if _under_way(source):
            st.caption("The prompt is being captured; the way to its Eviction page appears here.")
            return
        asked = CaptureSpec(
            context=example["context"],
            question=example["question"],
            model_id=str(study.spec.get("model", "demo")),
            revision=study.spec.get("revision"),
            dtype=str(study.spec.get("dtype", "auto")),
            device=str(study.spec.get("device", "auto")),
            chat_template=bool(study.spec.get("chat_template", False)),
            max_new_tokens=int(example["max_new_tokens"]),
            title=title,
            source=source,
        )
        st.button(
            "Capture this prompt",
            icon=":material/add_circle:",
            key="study-capture",
            help="A run of its own: every attention row, and any policy on it.",
            on_click=_submit,
            args=(asked, choice),
        )


def _under_way(source: str) -> bool:
    """Whether this prompt is being captured; other studies of the same title have prompts too."""
    jobs = backstage.jobs()
    captures = [jobs.spec(job.id) for job in jobs_view.active() if job.kind == "capture"]
    return any(job.params["spec"].get("source") == source for job in captures)


def _run_from(source: str, title: str) -> str | None:
    """The run that was captured from a prompt; studies may have the same title."""
    found = backstage.runs(search=title)
    for run, name, error in zip(found["id"], found["title"], found["error"], strict=True):
        if name != title or pd.notna(error):  # what cannot be read has its reason
            continue
        if backstage.capture(str(run)).info.settings.get("source") == source:
            return str(run)
    return None


def _submit(asked: CaptureSpec, choice: dict[str, Any]) -> None:
    try:
        backstage.jobs().submit(capture_job(dataclasses.replace(asked, **_passes(choice))))
    except KVScopeError as error:
        st.toast(plain(error))


def _choice(study: Study, row: pd.Series) -> tuple[dict[str, Any], dict[str, str]]:
    """The policy of a row with its size, and the Eviction page's values that show it."""
    key = str(row["policy_key"])
    if key == FULL:
        return {"key": FULL, "options": {}}, {}
    options = json.loads(row["options"] or "{}")
    choice = {**from_text(key), "options": options}
    query = {"p1": to_text(choice), "p2": "full()"}
    if pd.isna(row["size"]):  # it has its own
        return choice, query
    unit, name = ("entries", "budget") if study.axis == "budget" else ("ratio", "compression_ratio")
    asked = int(row["size"]) if study.axis == "budget" else float(row["size"])
    query |= {"unit": unit, "budget": f"{asked:g}"}
    return {**choice, "options": options | {name: asked}}, query


def _passes(choice: dict[str, Any]) -> dict[str, Any]:
    """What the run has to record besides, so that this policy can be replayed on it."""
    recorded: dict[str, Any] = {}
    score = choice.get("score") or catalogue()[choice["key"]].score
    if score not in NEED_A_PASS:
        return recorded
    backstage.heavy_imports()
    for kind, spec in passes_of(canonical(choice), has_rotary=True):
        if kind == "lookahead":
            recorded |= {"lookaheads": [to_text(spec["policy"])], "lookahead_steps": spec["steps"]}
        elif kind == "second_reading":
            recorded |= {"second_reading": True}
    return recorded
