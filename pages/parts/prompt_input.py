"""The prompt: typed, uploaded, or one of the samples."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import streamlit as st

from backend import first_start
from backend.prompts import (
    EXTENSIONS,
    FieldMapping,
    Prompt,
    PromptError,
    Upload,
    choose_rows,
    parse,
    propose_mapping,
    row_prompts,
    typed_prompt,
)
from backend.uploads import upload_limit
from pages.parts import selection
from pages.parts.text import plain, shorten, some

TYPE, UPLOAD, SAMPLE = "typing", "a file", "a sample"
PREVIEW_ROWS, PREVIEW_FIELDS = 5, 8
_ROW = "Row"
_MB = 1_000_000  # what the uploader calls a megabyte
_ONE, _TWO = "one field", "two fields: context and question"


def prompts() -> list[Prompt]:
    """What is to be read, one prompt per run. Raises PromptError while there is nothing usable."""
    way = selection.segment("The prompt comes from", "input", [TYPE, UPLOAD, SAMPLE])
    if way == UPLOAD:
        return _uploaded()
    if way == SAMPLE:
        _gallery()
        raise PromptError("No sample is chosen yet: choose one.")
    return _typed()


def something_given() -> bool:
    """Whether the reader has given a prompt, so that a problem with it is worth a sentence."""
    way = st.session_state.get("input", TYPE)
    if way == UPLOAD:
        return st.session_state.get("upload_file") is not None
    return way == TYPE and bool(st.session_state.get("context") or st.session_state.get("question"))


def title() -> str:
    """The sample's title while its text is unchanged."""
    sample = _sample_in_use()
    return sample.title if sample else ""


def _typed() -> list[Prompt]:
    sample = _sample_in_use()
    context = st.text_area(
        "Text",
        key="context",
        height=320,
        placeholder="Paste or type what the model should read.",
        persist_state="session",
    )
    question = st.text_area(
        "Question (optional, read after the text)",
        key="question",
        height=90,
        persist_state="session",
        help="Kept apart because some policies compress the text before they see the question.",
    )
    if sample:
        st.caption(plain(f"Sample “{sample.title}”. {sample.look_for}"))
    context, question = context or "", question or ""
    if not context and not question:
        raise PromptError("There is nothing to read yet: type some text or take a sample.")
    if not question.strip():
        return [typed_prompt(context)]
    if not context.strip():
        raise PromptError("There is a question but no text: type the text too.")
    if not context.endswith("\n") and not question.startswith("\n"):
        context += "\n\n"
    source = f"sample {sample.id}" if sample else "typed"
    return [Prompt(context + question, len(context), source)]


def _sample_in_use() -> first_start.Sample | None:
    texts = st.session_state.get("context"), st.session_state.get("question")
    for sample in first_start.samples():
        if texts == (sample.context, sample.question):
            return sample
    return None


def _gallery() -> None:
    """The samples as cards; choosing one fills the text boxes, where it can be changed."""
    st.caption("Prompts with a known answer, in the form that the embedded model was trained on.")
    with st.grid(2, min_column_width=260):
        for sample in first_start.samples():
            with st.container(border=True, gap="xsmall", height="stretch"):
                st.markdown(f"**{plain(sample.title)}**")
                st.caption(plain(sample.look_for))
                st.space("stretch")
                st.button("Use this", key=f"sample-{sample.id}", on_click=_use, args=(sample,))


def _use(sample: first_start.Sample) -> None:
    st.session_state["context"] = sample.context
    st.session_state["question"] = sample.question
    st.session_state["max_new_tokens"] = sample.max_new_tokens
    st.session_state["model"] = first_start.MODEL_ID
    st.session_state["input"] = TYPE


def _uploaded() -> list[Prompt]:
    file = st.file_uploader(
        "A text, or rows of prompts",
        type=list(EXTENSIONS),
        key="upload_file",
        max_upload_size=max(1, math.ceil(upload_limit() / _MB)),
    )
    if file is None:
        raise PromptError("No file is chosen yet: choose one.")
    upload = _parsed(file.file_id, file.name, file.getvalue())
    mapping = _mapping(upload)
    rows = [1]
    if len(upload.rows) > 1:
        asked = st.text_input(
            f"Rows (1 to {len(upload.rows):,}), each becomes a run",
            key="upload_rows",
            placeholder="1-3, 7 or all",
        )
        rows = _rows(str(asked or ""), len(upload.rows))
    _preview(upload, mapping, rows)
    return row_prompts(upload, rows, mapping)


def _rows(asked: str, count: int) -> list[int]:
    """The chosen rows; says which one an empty field means."""
    if not asked.strip():
        st.caption(f"Nothing is written here, so only row 1 of {count:,} is read.")
        return [1]
    return choose_rows(asked, count)


@st.cache_data(max_entries=8, show_spinner="Reading the file", hash_funcs={bytes: len})
def _parsed(file_id: str, name: str, data: bytes) -> Upload:
    return parse(name, data)


def _mapping(upload: Upload) -> FieldMapping:
    """Which field is the prompt; asked only when there is a choice."""
    proposed = propose_mapping(upload.fields)
    fields = list(upload.fields)
    if len(fields) == 1:
        return proposed
    form = st.segmented_control(
        "The prompt is in",
        [_ONE, _TWO],
        default=_TWO if proposed.context else _ONE,
        required=True,
        key=f"upload_form_{len(fields)}",
    )
    if form == _ONE:
        index = fields.index(proposed.prompt) if proposed.prompt in fields else 0
        return FieldMapping(prompt=str(st.selectbox("Field", fields, index=index)))
    left, right = st.columns(2)
    context = left.selectbox(
        "Context", fields, index=fields.index(proposed.context) if proposed.context else 0
    )
    question = right.selectbox(
        "Question",
        fields,
        index=fields.index(proposed.question) if proposed.question else min(1, len(fields) - 1),
    )
    return FieldMapping(context=str(context), question=str(question))


def _preview(upload: Upload, mapping: FieldMapping, rows: list[int]) -> None:
    """The chosen rows, the fields that become the prompt first."""
    used = [name for name in (mapping.prompt, mapping.context, mapping.question) if name]
    others = [name for name in upload.fields if name not in used]
    fields = list(dict.fromkeys((*used, *others)))[:PREVIEW_FIELDS]
    shown = rows[:PREVIEW_ROWS]
    frame = pd.DataFrame(
        {
            _ROW: shown,
            **{
                name: [shorten(upload.rows[row - 1].get(name, ""), 300) for row in shown]
                for name in fields
            },
        }
    )
    widths: dict[Any, Any] = {name: st.column_config.TextColumn(width=170) for name in fields}
    st.dataframe(
        frame.set_index(_ROW),
        column_config={_ROW: st.column_config.NumberColumn(width=50)} | widths,
        alt=f"Preview of {some(len(shown), 'row')} of the file",
    )
    if len(rows) > len(shown):
        st.caption(f"The first {len(shown)} of {len(rows):,} chosen rows.")
