"""Putting a study together: tasks, policies, sizes and measures, with what it will take."""

from __future__ import annotations

from typing import Any

import streamlit as st

from backend.models import available_models
from backend.spec import PromptError
from backend.study.entries import MEASURES, NEEDS_FUTURE, StudyError
from backend.study.scores import SCORES
from backend.study.sets import read_set
from backend.study.tasks import TASKS, Option, Task
from backend.uploads import EXTENSIONS
from kvpolicies.methods import catalogue
from pages.parts import study_draft
from pages.parts.study_draft import Draft, key
from pages.parts.study_ready import READY
from pages.parts.text import plain, shorten, some

MEASURE_WORDS = {
    "score": "score",
    "agreement": "agreement",
    "nll": "NLL",
    "kl": "KL",
    "latency": "latency",
}
_LISTS = ("ints", "shares")


def show(draft: Draft) -> None:
    """The form; every change is taken into the draft at once."""
    draft["problem"] = ""
    left, right = st.columns(2, gap="medium")
    with left:
        _general(draft)
        _policies(draft)
    with right:
        _tasks(draft)


def start_from() -> None:
    """The ready studies, each of them replacing the draft."""
    with st.popover("Start from a paper", icon=":material/menu_book:"):
        for number, (name, values) in enumerate(READY.items()):
            st.button(
                name,
                key=f"ready-{number}",
                type="tertiary",
                on_click=study_draft.replace,
                args=(values,),
            )


def _general(draft: Draft) -> None:
    with st.container(horizontal=True, vertical_alignment="bottom"):
        draft["title"] = st.text_input("Title", draft["title"], key=key("title"))
        draft["seed"] = int(
            st.number_input("Seed", 0, 2**31 - 1, draft["seed"], key=key("seed"), width=110)
        )
    models = available_models()
    options = models if draft["model"] in models else [*models, draft["model"]]
    draft["model"] = str(
        st.selectbox(
            "Model",
            options,
            options.index(draft["model"]),
            key=key("model"),
            accept_new_options=True,
            help="The embedded model, a folder on this machine, or a Hugging Face id.",
        )
    )
    with st.container(horizontal=True, vertical_alignment="bottom"):
        units = list(study_draft.SIZES)
        draft["unit"] = st.selectbox(
            "Sizes are",
            units,
            units.index(draft["unit"]),
            key=key("unit"),
            width=140,
            help="The share of entries that is evicted, or entries kept per KV head and layer.",
        )
        draft["sizes"] = st.text_input(
            "Sizes", draft["sizes"], key=key("sizes"), help="Numbers with commas between them."
        )
    draft["measures"] = list(
        st.pills(
            "Measures",
            MEASURES,
            selection_mode="multi",
            default=draft["measures"],
            format_func=MEASURE_WORDS.__getitem__,
            key=key("measures"),
            help="Agreement, NLL and KL compare with the full cache. Latency decodes every policy "
            "on its own, which takes longer.",
        )
        or []
    )


def _policies(draft: Draft) -> None:
    known = [
        name
        for name, method in catalogue().items()
        if name != "full" and method.score not in NEEDS_FUTURE
    ]
    draft["policies"] = list(
        st.multiselect(
            "Policies",
            [*known, *(text for text in draft["policies"] if text not in known)],
            draft["policies"],
            format_func=policy_words,
            key=key("policies"),
            accept_new_options=True,
            placeholder="Choose policies",
            help="A policy with options can be typed: snapkv(window=16). The full cache is always "
            "there.",
        )
    )
    _vary(draft)


def policy_words(text: str) -> str:
    """A policy's name with its options."""
    head, _, options = str(text).partition("(")
    method = catalogue().get(head)
    name = method.title if method else head
    inside = options.removesuffix(")")
    return f"{name}, {inside.replace('_', ' ')}" if inside else name


def _vary(draft: Draft) -> None:
    """One policy several times, with one option changed: an ablation in three words."""
    with st.popover("Vary an option", icon=":material/tune:", type="tertiary"):
        heads = [
            name for name in catalogue() if name in {p.partition("(")[0] for p in draft["policies"]}
        ]
        if not heads:
            st.caption("Choose a policy first.")
            return
        head = st.selectbox("Policy", heads, format_func=policy_words, key=key("vary-policy"))
        from pages.parts.policy_form import parameters

        names = [
            part.parameter.name
            for part in parameters(catalogue()[head])
            if part.parameter.name not in ("budget", "compression_ratio")
        ]
        name = st.selectbox("Option", names, key=key(f"vary-option-{head}"))
        values = st.text_input(
            "Values", key=key("vary-values"), placeholder="8, 16, 32", help="With commas between."
        )
        words = [word.strip() for word in values.split(",") if word.strip()]
        made = [f"{head}({name}={word})" for word in words]
        st.button(
            f"Add {some(len(made), 'policy').replace('policys', 'policies')}",
            key=key("vary"),
            disabled=not made,
            on_click=_add_policies,
            args=(made,),
        )


def _add_policies(texts: list[str]) -> None:
    now = study_draft.draft()
    wanted = [*now["policies"], *(text for text in texts if text not in now["policies"])]
    now["policies"] = wanted
    st.session_state[key("policies")] = wanted


def _tasks(draft: Draft) -> None:
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
                100_000,
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
        rows = len(read_set(data, entry["set"])) if data is not None else 0
        count = st.number_input(
            "Prompts",
            1,
            max(1, rows),
            entry.get("count") or max(1, rows),
            key=key(f"count-{index}"),
            width=110,
        )
        entry["count"] = int(count)
        _head(index, "this set")
    if data is None:
        st.caption("The file is not here any more: upload it again.")


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
