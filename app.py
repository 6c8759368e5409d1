"""KVScope in the browser: page configuration and navigation; start it with `make app`."""

from __future__ import annotations

import streamlit as st

from cache_store.errors import KVScopeError
from pages.parts import backstage, frame, sitemap
from pages.parts.text import plain


def main() -> None:
    sections = sitemap.sections()
    page = st.navigation(sections, position="hidden")
    st.set_page_config(page_title=f"{page.title} · KVScope", page_icon=frame.ICON, layout="wide")
    try:
        backstage.ready()
    except KVScopeError as error:
        st.error(plain(error))
        st.stop()
    frame.show(sections)
    page.run()


if __name__ == "__main__":
    main()
