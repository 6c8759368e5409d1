"""A figure card: title, plot, caption and its small actions."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd
import streamlit as st

from analysis.figure import Figure, Note
from analysis.tables import to_latex, to_markdown
from pages.parts import drawn, export_view, plot, selection, sheet_add
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
    from analysis.plotly_renderer import to_spec

    with st.container(border=True, gap="xsmall", key=f"card-{key}"):
        st.markdown(f"**{plain(figure.title)}**")
        spec = to_spec(figure, theme=theme(), height=height)
        spec.layout["font"]["family"] = _FONT
        plot.plot(
            spec, key=key, alt=figure.alt or figure.title, on_point=_clicked(on_cell, on_point)
        )
        if figure.caption:
            st.caption(plain(figure.caption))
        actions(figure.table, key=key, name=key, link_values=link_values, figure=figure)


def _clicked(
    on_cell: Callable[[int, int], None] | None,
    on_point: Callable[[float, float], None] | None,
) -> Callable[[float, float], None] | None:
    """What is done with the x and y of a click."""
    if on_cell is None:
        return on_point
    return lambda x, y: on_cell(int(y), int(x))


def how_to_read(notes: Mapping[str, str | Note]) -> None:
    """The words below the figures, by name; formulas and sources one click away."""
    st.subheader("How to read it", anchor=False)
    told = {name: n if isinstance(n, str) else n.how_to_read for name, n in notes.items()}
    st.markdown("\n\n".join(f"**{plain(name)}.** {plain(words)}" for name, words in told.items()))
    more = st.expander("Formulas and sources", key="formulas", on_change="rerun")
    if not more.open:
        return
    with more:
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
        data = _popover("Data", "download", f"data-{key}")
        if data.open:
            with data:
                downloads(table, key=key, name=name, title=figure.title if figure else "")
        link = _popover("Link", "link", f"link-{key}")
        if link.open:
            with link:
                st.caption("This address opens this view.")
                st.code(selection.link(link_values), language=None, wrap_lines=True)


def _popover(label: str, icon: str, key: str) -> Any:
    """Closed it holds nothing: every button would be made and sent with each step of a slider."""
    return st.popover(label, icon=f":material/{icon}:", type="tertiary", key=key, on_change="rerun")


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
