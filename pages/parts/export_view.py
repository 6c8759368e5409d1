"""The popover "Export": a figure's file as it will be, looked at before it is downloaded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import streamlit as st

from analysis.export import FORMS, export
from analysis.figure import Figure
from analysis.paper.venues import FAMILIES, LEGENDS, MM, VENUES, Style, colour_maps, style_for
from analysis.sources import with_sources
from cache_store.errors import KVScopeError
from pages.parts import backstage, selection
from pages.parts.text import plain

SOURCED = ("parquet", "figure", "provenance")
_PREVIEW_DPI = 150


def popover(figure: Figure, *, key: str, name: str, link_values: dict[str, Any]) -> None:
    """The button; what is behind it costs nothing until it is opened."""
    opened = st.popover(
        "Export",
        icon=":material/picture_as_pdf:",
        type="tertiary",
        key=f"export-{key}",
        on_change="rerun",
    )
    if opened.open:
        with opened:
            _choices(figure, key, name, selection.link(link_values))


@st.fragment
def _choices(figure: Figure, key: str, name: str, link: str) -> None:
    """Options, the download, and the real rendering."""
    with st.container(horizontal=True, gap="small"):
        form = st.selectbox(
            "Format",
            list(FORMS),
            format_func=lambda form: FORMS[form].label,
            key=f"form-{key}",
            width=190,
        )
        venue = _venue(key) if FORMS[form].paper else ""
    try:
        style = _style(figure, key, form, venue) if venue else style_for()
        _download(figure, form, style, key=key, name=name, link=link)
        if venue:
            _preview(figure, style)
    except KVScopeError as error:
        st.error(plain(error))


def _download(figure: Figure, form: str, style: Style, *, key: str, name: str, link: str) -> None:
    """Above the rendering, so that it is seen without scrolling; makes the file when pressed."""
    st.download_button(
        f"Download {FORMS[form].suffix}",
        data=lambda: export(_sourced(figure, form), form, style, link),
        file_name=f"kvscope-{name}.{FORMS[form].suffix}",
        mime=FORMS[form].mime,
        icon=":material/download:",
        key=f"save-{key}",
        on_click="ignore",
    )


def _sourced(figure: Figure, form: str) -> Figure:
    """With the hash of its runs' files, and more, where a file says where it comes from."""
    return with_sources(figure, backstage.capture) if form in SOURCED else figure


def _venue(key: str) -> str:
    return str(
        st.selectbox(
            "Venue",
            list(VENUES),
            format_func=lambda venue: VENUES[venue].label,
            key=f"venue-{key}",
            width=200,
        )
    )


def _style(figure: Figure, key: str, form: str, venue: str) -> Style:
    """The reader's choices; an empty width, height or font size is the venue's own."""
    usual = style_for(venue)
    with st.container(horizontal=True, gap="small"):
        width = _number("Width (in)", f"width-{key}", usual.width_in)
        height = _number("Height (in)", f"height-{key}", usual.height_in)
        font = _number("Font (pt)", f"font-{key}", usual.font_pt)
    with st.container(horizontal=True, gap="small"):
        family = st.selectbox(
            "Typeface",
            FAMILIES,
            index=FAMILIES.index(usual.family),
            key=f"family-{venue}-{key}",
            width=110,
        )
        colours = st.selectbox("Colours", colour_maps(figure), key=f"colours-{key}", width=150)
        legend = st.selectbox("Legend", LEGENDS, key=f"legend-{key}", width=110)
    with st.container(horizontal=True, gap="small", vertical_alignment="bottom"):
        title = st.toggle("Title", value=True, key=f"title-{key}")
        dpi = None
        if form == "png":
            dpi = st.selectbox("Dots per inch", (150, 300, 600), index=1, key=f"dpi-{key}")
    return style_for(
        venue,
        width_in=width,
        height_in=height,
        font_pt=font,
        family=family,
        colour_map=colours,
        legend=legend,
        title=title,
        dpi=dpi,
    )


def _number(label: str, key: str, usual: float | None) -> float | None:
    return st.number_input(
        label,
        value=None,
        step=0.25,
        placeholder="automatic" if usual is None else f"{usual:.3g}",
        key=key,
        width=110,
    )


def _preview(figure: Figure, style: Style) -> None:
    with st.spinner("Drawing"):
        picture = export(figure, "png", replace(style, dpi=_PREVIEW_DPI))
    st.image(picture, width="stretch")
    st.caption(
        plain(
            f"As it will be printed, {style.width_in:.3g} in ({style.width_in / MM:.0f} mm) wide."
        )
    )
