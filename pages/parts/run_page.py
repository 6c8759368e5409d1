"""A page about one run: its question, its controls, its figures, and the words below them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import streamlit as st

from analysis.figure import Note
from cache_store.errors import KVScopeError
from cache_store.reader import CaptureInfo
from kvpolicies import PolicyError
from pages.parts import backstage, card, frame, selection, waiting
from pages.parts.text import plain

Notes = Mapping[str, str | Note]


class _Look(Protocol):
    def link(self) -> dict[str, Any]:
        """What the link to this view holds."""


L = TypeVar("L", bound=_Look)


def show(
    question: str, controls: Callable[[str, CaptureInfo], L], figures: Callable[[L], Notes]
) -> None:
    """The chosen run under its question; `controls` say what is looked at, `figures` draw it and
    return how each is read. Without a run it says what to do next, and an error is a sentence."""
    run_id = frame.current_run()
    if run_id is None:
        frame.heading(question)
        waiting.empty_library()
        return
    head, told = st.container(), st.container()
    try:
        look = controls(run_id, backstage.capture(run_id).info)
        with head:
            frame.title(question, look.link())
        notes = figures(look)
        if notes:
            card.how_to_read(notes)
    except (KVScopeError, PolicyError) as error:
        st.error(plain(error))
    finally:
        with told:  # a figure may be the first to find that a value of the URL does not exist
            selection.show_notices()
