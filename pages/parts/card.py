"""A figure card: title, plot, caption and its small actions."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd
import streamlit as st

from analysis.figure import Figure, Note
from analysis.tables import to_latex, to_markdown
from pages.parts import drawn, export_view, selection, sheet_add
from pages.parts.text import plain

_FONT = '"Source Sans", sans-serif'  # the page's own


def theme() -> str:
    """ "light" or "dark", as the reader's browser shows the page."""
    return "dark" if st.context.theme.type == "dark" else "light"


def figure_card(
    figure: Figure,
    *,
    key: str,
    link_values: dict[str, Any],
    height: int | None = None,
    on_cell: Callable[[int, int], None] | None = None,
    on_point: Callable[[float, float], None] | None = None,
) -> None:
    """Draw a figure; `on_cell` is called with row and column when a cell of a grid is clicked,
    `on_point` with x and y when a marked point is."""
    from analysis.plotly_renderer import to_plotly

    with st.container(border=True, gap="xsmall", key=f"card-{key}"):
        st.markdown(f"**{plain(figure.title)}**")
        plot = to_plotly(figure, theme=theme(), height=height)
        plot.layout.font.family = _FONT
        st.plotly_chart(
            plot,
            theme=None,
            key=key,
            on_select=_callback(key, on_cell, on_point),
            selection_mode="points",
            config={"displaylogo": False, "modeBarButtonsToRemove": ["select2d", "lasso2d"]},
            alt=figure.alt or figure.title,
        )
        if figure.caption:
            st.caption(plain(figure.caption))
        actions(figure.table, key=key, name=key, link_values=link_values, figure=figure)


def _callback(
    key: str,
    on_cell: Callable[[int, int], None] | None,
    on_point: Callable[[float, float], None] | None,
) -> Any:
    """What Streamlit is told to do with a click, "ignore" where nothing comes of one."""
    if on_cell is None and on_point is None:
        return "ignore"

    def clicked() -> None:
        points = st.session_state[key].selection.points
        if points and on_cell is not None:
            on_cell(int(points[0]["y"]), int(points[0]["x"]))
        elif points and on_point is not None:
            on_point(float(points[0]["x"]), float(points[0]["y"]))

    return clicked


def how_to_read(notes: Mapping[str, str | Note]) -> None:
    """The words below the figures, by name; formulas and sources one click away."""
    st.subheader("How to read it", anchor=False)
    for name, note in notes.items():
        words = note if isinstance(note, str) else note.how_to_read
        st.markdown(f"**{plain(name)}.** {plain(words)}")
    with st.expander("Formulas and sources"):
        for name, note in notes.items():
            if isinstance(note, Note) and note.formula:
                st.markdown(f"**{plain(name)}**")
                st.text(note.formula)
                if note.source:
                    st.caption(plain(note.source))


def actions(
    table: Callable[[], pd.DataFrame],
    *,
    key: str,
    name: str,
    link_values: dict[str, Any],
    figure: Figure | None = None,
) -> None:
    """Export (of a figure), Data (as a table) and Link; files are made when asked for."""
    if figure is not None:
        drawn.tell(key, figure, link_values)
    with st.container(horizontal=True, gap="small"):
        if figure is not None:
            export_view.popover(figure, key=key, name=name, link_values=link_values)
            sheet_add.button(figure, key=key, link_values=link_values)
        with st.popover("Data", icon=":material/download:", type="tertiary", key=f"data-{key}"):
            downloads(table, key=key, name=name, title=figure.title if figure else "")
        with st.popover("Link", icon=":material/link:", type="tertiary", key=f"link-{key}"):
            st.caption("This address opens this view.")
            st.code(selection.link(link_values), language=None, wrap_lines=True)


def downloads(table: Callable[[], pd.DataFrame], *, key: str, name: str, title: str = "") -> None:
    """A button for each form, which makes the file when it is pressed."""
    forms: dict[str, tuple[str, str, Callable[[], bytes]]] = {
        "CSV": ("csv", "text/csv", lambda: table().to_csv(index=False).encode("utf-8", "replace")),
        "Parquet": ("parquet", "application/vnd.apache.parquet", lambda: _parquet(table())),
        "LaTeX": ("tex", "application/x-tex", lambda: to_latex(table(), title)),
        "Markdown": ("md", "text/markdown", lambda: to_markdown(table(), title)),
    }
    with st.container(horizontal=True, gap="small"):
        for label, (suffix, mime, make) in forms.items():
            st.download_button(
                label,
                data=make,
                file_name=f"kvscope-{name}.{suffix}",
                mime=mime,
                key=f"{label.lower()}-{key}",
                on_click="ignore",
            )


def _parquet(table: pd.DataFrame) -> bytes:
    buffer = io.BytesIO()
    table.to_parquet(buffer, index=False)
    return buffer.getvalue()
