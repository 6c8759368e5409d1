"""The pages by section, in the order of the sidebar; a new page is a new row."""

from __future__ import annotations

from typing import Any

import streamlit as st

START = ""  # the section of the bare address, which is not listed
FIRST_PAGE = "pages/attention.py"
# Beside the pages, not in them: Streamlit would fetch a page's own icon from the network.
ICONS = {
    "New run": ":material/add_circle:",
    "Library": ":material/database:",
    "Attention": ":material/grid_on:",
    "Eviction": ":material/content_cut:",
    "Recurrence": ":material/history:",
    "Recall": ":material/target:",
    "Queries": ":material/scatter_plot:",
    "Budgets": ":material/stacked_bar_chart:",
    "Partitions": ":material/view_column:",
    "Picks": ":material/checklist:",
    "Studies": ":material/science:",
    "Findings": ":material/fact_check:",
    "Figure sheet": ":material/view_quilt:",
}


def sections() -> dict[str, list[Any]]:
    """Sections and their pages for `st.navigation`, whose addresses are the files' names."""
    return {
        START: [st.Page(_start, title="KVScope", default=True, visibility="hidden")],
        "Runs": [
            st.Page("pages/new_run.py", title="New run"),
            st.Page("pages/library.py", title="Library"),
        ],
        "Look": [st.Page("pages/attention.py", title="Attention")],
        "Evict": [st.Page("pages/eviction.py", title="Eviction")],
        "Papers": [
            st.Page("pages/recurrence.py", title="Recurrence"),
            st.Page("pages/recall.py", title="Recall"),
            st.Page("pages/queries.py", title="Queries"),
            st.Page("pages/budgets.py", title="Budgets"),
            st.Page("pages/partitions.py", title="Partitions"),
            st.Page("pages/picks.py", title="Picks"),
        ],
        "Measure": [
            st.Page("pages/studies.py", title="Studies"),
            st.Page("pages/findings.py", title="Findings"),
        ],
        "Paper": [st.Page("pages/figure_sheet.py", title="Figure sheet")],
    }


def _start() -> None:
    """The bare address leads to the first page, so that every page has an address of its own."""
    params = st.query_params
    st.switch_page(FIRST_PAGE, query_params={key: params.get_all(key) for key in params})
