"""The figures of a page, as a test of the page finds them."""

from __future__ import annotations

from typing import Any

from streamlit.testing.v1 import AppTest


def plots(app: AppTest) -> list[Any]:
    """In the order of the page."""
    return [
        part for part in app.get("bidi_component") if part.proto.component_name.endswith("plot")
    ]
