"""Putting a study together: its model, policies, sizes and measures beside its prompts."""

from __future__ import annotations

import streamlit as st

from backend.models import available_models
from backend.study.entries import MEASURES, NEEDS_FUTURE
from kvpolicies.methods import catalogue
from pages.parts import study_draft, study_tasks
from pages.parts.study_draft import Draft, key
from pages.parts.study_ready import READY
from pages.parts.text import some

MEASURE_WORDS = {
    "score": "score",
    "agreement": "agreement",
    "nll": "NLL",
    "kl": "KL",
    "latency": "latency",
}


def show(draft: Draft) -> None:
    """The form; every change is taken into the draft at once."""
    draft["problem"] = ""
    with st.grid(2, min_column_width=380, gap="medium"):
        with st.container():
            _general(draft)
            _policies(draft)
        with st.container():
            study_tasks.show(draft)


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
