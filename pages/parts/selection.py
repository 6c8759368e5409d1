"""What the reader looks at: run, layer, head and step, kept in the URL and from page to page.

A value in the URL that does not exist falls back to the default and says so in one sentence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlencode, urlsplit, urlunsplit

import streamlit as st

from pages.parts.text import plain, shorten

NOTICES = "selection_notices"
_RUN_OF = "selection_run"


def choice(
    label: str,
    key: str,
    options: Sequence[str],
    default: str,
    *,
    per_run: bool = False,
    **more: Any,
) -> str:
    """A select box whose value is in the URL as `key`; `options` are the words in the URL."""
    _settle(key, lambda value: value in options, default, _listing(label, options), per_run)
    more.setdefault("index", list(options).index(default))
    return str(st.selectbox(label, list(options), key=key, bind="query-params", **more))


def step_slider(label: str, key: str, first: int, last: int, lowest: int, default: int) -> int:
    """A slider over `first` … `last` that reaches down to `lowest` when such a step is chosen.

    The URL holds the step and the slider follows it: a slider that is bound to the URL forgets
    to tell it when its own range changes."""
    asked = st.query_params.get(key)
    if asked is not None and not is_step(asked, lowest, last):
        says = f"{label} goes from {lowest:,} to {last:,}"
        notice(key, f"There is no {key} {shorten(asked, 40)!r} here: {says}. Shown is {default}.")
        asked = None
    elif asked is not None and int(asked) != default:
        forget_notice(key)
    step = default if asked is None else int(asked)
    if str(step) != st.query_params.get(key):
        st.query_params.pop(key, None)
    st.session_state[key] = step
    st.slider(
        label,
        min_value=lowest if step < first else first,
        max_value=max(last, first + 1),
        key=key,
        on_change=lambda: go_to_step(key, st.session_state[key]),
    )
    return step


def go_to_step(key: str, step: int) -> None:
    """From a callback: the step of a `step_slider`."""
    st.query_params[key] = str(step)


def settle_page(pages: int) -> None:
    """A page of the text that does not exist falls back to the step's own page."""
    asked = st.session_state.get("page", st.query_params.get("page"))
    if asked is not None and not is_step(asked, 1, pages):
        st.session_state.pop("page", None)
        has = "1 page" if pages == 1 else f"{pages} pages"
        notice("page", f"There is no page {shorten(asked, 20)!r} here: the text has {has}.")
    elif asked is not None:
        forget_notice("page")


def span(label: str, key: str, length: int, **more: Any) -> tuple[int, int]:
    """A range of positions; the slider and the URL name first and last, returned is [first, end).

    The default is all of the text; a new run starts with all of it."""
    whole = (0, length - 1)
    if _new_run(key):
        st.session_state[key] = whole
    asked = st.session_state.get(key) or st.query_params.get_all(key)
    if asked and not _is_span(asked, length):
        between = " to ".join(shorten(value, 20) for value in asked)
        notice(key, f"There are no positions {between} here: this run has 0 to {length - 1:,}.")
        if key in st.session_state:
            st.session_state[key] = whole
    elif asked and tuple(int(float(value)) for value in asked) != whole:
        forget_notice(key)
    if length < 2:
        return (0, length)
    first, last = st.slider(label, 0, length - 1, whole, key=key, bind="query-params", **more)
    return int(first), int(last) + 1


def segment(label: str, key: str, options: Sequence[str], **more: Any) -> str:
    """A few options side by side, the first is the default; the words are in the URL."""
    _settle(key, lambda value: value in options, options[0], _listing(label, options), False)
    return str(
        st.segmented_control(
            label,
            list(options),
            default=options[0],
            required=True,
            key=key,
            bind="query-params",
            **more,
        )
    )


def several(label: str, key: str, options: Sequence[str], **more: Any) -> tuple[str, ...]:
    """Some of the options, none when all are meant; the words are in the URL."""
    asked = st.session_state.get(key) or st.query_params.get_all(key)
    unknown = [value for value in asked if value not in options]
    if unknown:
        says = f"{label} are {', '.join(options)}"
        notice(key, f"There is no {shorten(unknown[0], 40)!r} here: {says}. It is left out.")
        if key in st.session_state:
            st.session_state[key] = [value for value in asked if value in options]
    elif asked:
        forget_notice(key)
    more.setdefault("placeholder", "All")
    return tuple(st.multiselect(label, list(options), key=key, bind="query-params", **more))


def notices() -> list[str]:
    """What the URL asked for and could not get; each is one sentence."""
    return list(st.session_state.get(NOTICES, {}).values())


def notice(key: str, sentence: str) -> None:
    st.session_state.setdefault(NOTICES, {})[key] = sentence


def forget_notice(key: str) -> None:
    """What was said about `key` is no longer true."""
    st.session_state.get(NOTICES, {}).pop(key, None)


def forget_notices() -> None:
    st.session_state.pop(NOTICES, None)


def link(values: dict[str, Any]) -> str:
    """The address that opens the current page with exactly these values."""
    parts = urlsplit(st.context.url or "")
    pairs = [
        (key, str(item))
        for key, value in values.items()
        if value is not None
        for item in (value if isinstance(value, list | tuple) else (value,))
    ]
    return urlunsplit((parts.scheme, parts.netloc, parts.path, urlencode(pairs), ""))


def _settle(key: str, valid: Callable[[Any], bool], default: Any, says: str, per_run: bool) -> None:
    """Before the widget is drawn: a value that does not exist becomes the default, with notice."""
    if per_run and _new_run(key) and key in st.session_state:
        st.session_state[key] = default
    asked = st.session_state.get(key, st.query_params.get(key))
    if asked is None or valid(asked):
        if asked is not None and str(asked) != str(default):
            forget_notice(key)
        return
    if key in st.session_state:
        st.session_state[key] = default
    notice(key, f"There is no {key} {shorten(asked, 40)!r} here: {says}. Shown is {default}.")


def _new_run(key: str) -> bool:
    """Whether the run changed since this control was last drawn."""
    seen: dict[str, str | None] = st.session_state.setdefault(_RUN_OF, {})
    run = st.session_state.get("run")
    changed = key in seen and seen[key] != run
    seen[key] = run
    return changed


def is_step(value: Any, lowest: int, last: int) -> bool:
    """Whether a value from the URL is a whole number from `lowest` to `last`."""
    try:
        return lowest <= int(value) <= last
    except (TypeError, ValueError):
        return False


def _is_span(values: Sequence[Any], length: int) -> bool:
    try:
        first, last = (float(value) for value in values)
    except (TypeError, ValueError):
        return False
    return 0 <= first <= last < length


def _listing(label: str, options: Sequence[str]) -> str:
    if len(options) <= 6:
        return f"{label} is one of {', '.join(options)}"
    return f"{label} is one of {', '.join(options[:3])}, … {options[-1]}"


def show_notices() -> None:
    """The notices above the figures, in one quiet box."""
    for sentence in notices():
        st.warning(plain(sentence), icon=":material/link_off:")
