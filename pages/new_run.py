"""What should the model read? A prompt, a model, what it will cost, and its progress."""

from __future__ import annotations

import streamlit as st

from cache_store.errors import KVScopeError
from pages.parts import frame, model_input, prompt_input, start_run
from pages.parts.text import plain

frame.current_run()
frame.heading("What should the model read?", start_run.link_values())
start_run.followed()
columns = st.grid(2, min_column_width=380, gap="medium")
left, right = columns.cell(), columns.cell()
prompts, problem = [], ""
with left:
    try:
        prompts = prompt_input.prompts()
    except KVScopeError as error:
        problem = str(error)
        if prompt_input.something_given():
            st.error(plain(problem))
with right:
    try:
        model = model_input.model()
        settings = model_input.settings(model)
        start_run.check_and_start(prompts, model, settings, problem)
    except KVScopeError as error:
        st.error(plain(error))
