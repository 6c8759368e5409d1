"""The prompts of a study that is put together: tasks with their options, and uploaded sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from backend.spec import PromptError
from backend.study.entries import MOST_PROMPTS, StudyError
from backend.study.scores import SCORES
from backend.study.sets import read_set
from backend.study.tasks import TASKS, Example, Option, Task
from backend.uploads import EXTENSIONS
from pages.parts import study_draft
from pages.parts.study_draft import Draft, key
from pages.parts.text import plain, shorten, some

_LISTS = ("ints", "shares")


def show(draft: Draft) -> None:
    """The tasks and sets of a draft, and adding another one."""
    for index, entry in enumerate(draft["tasks"]):
        with st.container(border=True, gap="xsmall", key=key(f"task-card-{index}")):
            if "set" in entry:
                _set(index, entry)
            else:
                _task(index, entry)
    with st.container(horizontal=True):
        st.button("Task", icon=":material/add:", key=key("add-task"), on_click=_add_task)
        with st.popover("Upload a set", icon=":material/upload:"):
            _upload()


def _head(index: int, words: str) -> None:
    st.button(
        "",
        icon=":material/close:",
        type="tertiary",
        help=f"Remove {words}",
        key=key(f"remove-task-{index}"),
        on_click=_remove_task,
        args=(index,),
    )


def _task(index: int, entry: dict[str, Any]) -> None:
    with st.container(horizontal=True, vertical_alignment="bottom"):
        names = list(TASKS)
        chosen = st.selectbox(
            "Task",
            names,
            names.index(entry["task"]) if entry["task"] in names else 0,
            format_func=lambda name: TASKS[name].label,
            key=key(f"task-{index}"),
        )
        if chosen != entry["task"]:
            entry["task"], entry["options"] = chosen, {}
        entry["count"] = int(
            st.number_input(
                "Prompts",
                1,
                MOST_PROMPTS,
                entry.get("count") or 4,
                key=key(f"count-{index}"),
                width=110,
                help="For every length and depth.",
            )
        )
        _head(index, "this task")
    task = TASKS[entry["task"]]
    st.caption(plain(task.idea))
    options = entry.setdefault("options", {})
    listed = [option for option in task.options if option.name != "wording"]
    with st.grid(3, min_column_width=120, gap="small"):
        for option in listed:
            _option(index, task, option, options)
        _scoring(index, entry, task.scorings)


def _option(index: int, task: Task, option: Option, options: dict[str, Any]) -> None:
    value = options.get(option.name, option.default)
    widget = key(f"{task.name}-{option.name}-{index}")
    label = option.name.replace("_", " ").capitalize()
    if option.kind in _LISTS:
        several = value if isinstance(value, list) else [value]
        text = st.text_input(
            label,
            ", ".join(f"{number:g}" for number in several),
            key=widget,
            help=plain(f"{option.meaning}. Several with commas between."),
            placeholder="anywhere" if option.kind == "shares" else "",
        )
        try:
            options[option.name] = study_draft.numbers(text, whole=option.kind == "ints")
        except StudyError as error:
            study_draft.draft()["problem"] = f"{task.label}, {label.lower()}: {error}"
    else:
        options[option.name] = int(
            st.number_input(
                label,
                int(option.low),
                int(option.high),
                int(value),
                key=widget,
                help=plain(option.meaning),
            )
        )


def _scoring(index: int, entry: dict[str, Any], choices: tuple[str, ...]) -> None:
    now = entry.get("scoring") or choices[0]
    known = [*choices, *([] if now in choices else [now])]
    chosen = st.selectbox(
        "Score",
        known,
        known.index(now),
        format_func=lambda name: SCORES[name].label,
        key=key(f"scoring-{index}-{'-'.join(known)}"),
        help=plain(SCORES[now].meaning),
    )
    if chosen == choices[0]:
        entry.pop("scoring", None)
    else:
        entry["scoring"] = chosen


def _set(index: int, entry: dict[str, Any]) -> None:
    data = study_draft.sets().get(entry["set"])
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.markdown(f"**{plain(entry['set'])}**", width="stretch")
        if data is not None:
            examples = read_set(data, entry["set"])
            rows = len(examples)
            count = st.number_input(
                f"Prompts, of {rows:,}",
                1,
                rows,
                min(entry.get("count") or rows, rows),
                key=key(f"count-{index}-{rows}"),  # a longer or shorter file has its own field
                width=130,
            )
            if count == rows:
                entry.pop("count", None)
            else:
                entry["count"] = int(count)
        _head(index, "this set")
    if data is not None:
        st.caption(plain(_recognised(examples)))
    else:
        st.caption("This file is not here: upload it below, under the same name.")


def _recognised(examples: Sequence[Example]) -> str:
    """How the rows of a set will be scored, and how long their answers may be."""
    compared = sum(not example.answers for example in examples)
    labels = list(dict.fromkeys(SCORES[one.scoring].label for one in examples if one.answers))
    words = [f"scored by {', '.join(labels)}"] if labels else []
    if compared:
        words.append(f"{some(compared, 'prompt')} without answers, compared with the full cache")
    longest = max(example.max_new_tokens for example in examples)
    text = "; ".join([*words, f"answers of at most {longest:,} tokens"])
    return f"{text[0].upper()}{text[1:]}."


def _upload() -> None:
    st.caption(
        "RULER or LongBench JSONL; rows with context, question and answers; or plain prompts, "
        "which are scored by agreement with the full cache."
    )
    file = st.file_uploader("A set of prompts", type=list(EXTENSIONS), key=key("upload"))
    if file is None:
        return
    try:
        examples = read_set(file.getvalue(), file.name)
    except PromptError as error:
        st.error(plain(error))
        return
    first = examples[0]
    st.caption(
        plain(
            f"{some(len(examples), 'prompt')}; the first: "
            f"{shorten(first.context, 80)} {shorten(first.question, 60)}"
        )
    )
    st.caption(plain(_recognised(examples)))
    st.button(
        "Add this set",
        key=key("add-set"),
        type="primary",
        on_click=_add_set,
        args=(file.name, file.getvalue()),
    )


def _add_set(name: str, data: bytes) -> None:
    study_draft.sets()[name] = data
    tasks = study_draft.draft()["tasks"]
    if not any(entry.get("set") == name for entry in tasks):
        tasks.append({"set": name})


def _add_task() -> None:
    study_draft.draft()["tasks"].append({"task": "passkey", "count": 4, "options": {}})


def _remove_task(index: int) -> None:
    values = study_draft.draft()
    values["tasks"] = [task for i, task in enumerate(values["tasks"]) if i != index]
    study_draft.renew()
