"""Which runs do I have? The runs with their facts, two of them compared, and SQL over them."""

from __future__ import annotations

import streamlit as st

from cache_store.errors import KVScopeError
from pages.parts import backstage, compare, frame, run_actions, run_table, sql_box
from pages.parts.text import plain
from pages.parts.waiting import empty_library

run = frame.current_run()
everything = backstage.runs()
run_table.settle(everything)
frame.heading("Which runs do I have?", run_table.link_values())
try:
    run_actions.say_imported()
    with st.container(horizontal=True, vertical_alignment="bottom"):
        search, sort = run_table.controls()
        run_actions.import_popover()
    runs = backstage.runs(search, sort)
    if runs.empty and not search:
        empty_library()
        st.stop()
    chosen = run_table.table(runs, search)
    run_actions.row(chosen)
    if len(chosen) == 2:
        compare.show(list(chosen["id"]))
    sql_box.show(chosen if len(chosen) else everything[everything["id"] == run], len(chosen) > 0)
except KVScopeError as error:
    st.error(plain(error))
