"""Read-only SQL over the selected captures, with the tables beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import streamlit as st

from cache_store import schema
from cache_store.errors import KVScopeError
from cache_store.sql import QueryResult, run_sql
from pages.parts import backstage, card
from pages.parts.text import duration, plain, shorten, some

TIMEOUT_S = 10
ROW_LIMIT = 10_000
_MAX_SHOWN = 1_000  # characters or list values in one cell
_ALIASES = tuple(f"run{index}" for index in range(1, 9))
EXAMPLES = {
    "The most focused heads": (
        "SELECT layer, head, avg(entropy) AS entropy, avg(top1_mass) AS top1_mass\n"
        "FROM step_stat WHERE step > 0\n"
        "GROUP BY layer, head ORDER BY entropy LIMIT 20"
    ),
    "Tokens that every head comes back to": (
        "SELECT t.position, t.text, count(*) AS times, sum(a.weight) AS weight\n"
        "FROM attention_top a JOIN token t USING (position)\n"
        "WHERE a.step > 0 AND a.rank = 1\n"
        "GROUP BY t.position, t.text ORDER BY times DESC LIMIT 20"
    ),
    "What each generated token looked at": (
        "SELECT a.step, q.text AS token, t.text AS looked_at, a.position, a.weight\n"
        "FROM attention_top a JOIN token t USING (position)\n"
        "JOIN token q ON q.position = a.step - 1 + (SELECT prompt_length FROM capture)\n"
        "WHERE a.layer = 0 AND a.head = 0 AND a.rank = 1 AND a.step > 0\n"
        "ORDER BY a.step"
    ),
    "Keys with the smallest norms": (
        "SELECT k.layer, k.head, k.position, t.text, k.key_norm, k.attention_sum\n"
        "FROM kv_stat k JOIN token t USING (position)\n"
        "ORDER BY k.key_norm LIMIT 50"
    ),
    "Time by phase": "SELECT title, timings FROM capture",
}


def show(runs: pd.DataFrame, ticked: bool) -> None:
    """The box over `runs` (at most eight), the ticked ones or the sidebar's: query and result
    left, tables right."""
    readable = runs[runs["error"].isna()].head(len(_ALIASES))
    if readable.empty:
        return
    st.subheader("What else can I ask?", anchor=False)
    st.caption(_asked(readable, len(runs), ticked))
    columns = st.grid(2, min_column_width=380)
    left, right = columns.cell(), columns.cell()
    with left:
        _query(
            {alias: str(run_id) for alias, run_id in zip(_ALIASES, readable["id"], strict=False)}
        )
    with right:
        _tables(dict(zip(_ALIASES, readable["title"], strict=False)))


def _asked(readable: pd.DataFrame, count: int, ticked: bool) -> str:
    """Which runs a query reads."""
    titles = [
        f"“{shorten(title or run_id, 48)}”"
        for title, run_id in zip(readable["title"], readable["id"], strict=True)
    ]
    if not ticked:
        return plain(
            f"A query reads {titles[0]}, the run in the sidebar. Tick runs above to ask those."
        )
    left = f" The other {count - len(titles)} are left out." if count > len(titles) else ""
    if len(titles) == 1:
        return plain(f"A query reads {titles[0]}, the ticked run.{left}")
    return plain(f"A query reads the ticked runs {', '.join(titles)}.{left}")


def _query(runs: dict[str, str]) -> None:
    st.session_state.setdefault("sql", next(iter(EXAMPLES.values())))
    st.selectbox(
        "Examples",
        list(EXAMPLES),
        index=None,
        key="sql_example",
        placeholder="Choose an example query",
        on_change=_take_example,
    )
    sql = st.text_area("SQL, read-only", key="sql", height=170, persist_state="session")
    if st.button("Run the query", type="primary", key="run_sql"):
        paths = {alias: _path(run_id) for alias, run_id in runs.items()}
        st.session_state["sql_answer"] = runs, _ask(paths, str(sql or ""))
    of_runs, answer = st.session_state.get("sql_answer", (None, None))
    if of_runs != runs:
        st.session_state.pop("sql_answer", None)
        return
    if isinstance(answer, str):
        st.error(plain(answer))
    elif answer is not None:
        _result(answer)


def _ask(paths: dict[str, Path], sql: str) -> QueryResult | str:
    try:
        return run_sql(paths, sql, timeout_s=TIMEOUT_S, row_limit=ROW_LIMIT)
    except KVScopeError as error:
        return str(error)


def _result(answer: QueryResult) -> None:
    cut = f"; cut after {len(answer.frame):,}, add a LIMIT or a WHERE" if answer.truncated else ""
    st.caption(f"{some(len(answer.frame), 'row')}{cut} · {duration(answer.seconds)}")
    st.dataframe(
        _showable(answer.frame),
        hide_index=True,
        placeholder="NULL",
        height=320,
        alt="Result of the query",
    )
    card.downloads(lambda: answer.frame, key="sql", name="query")


def _showable(frame: pd.DataFrame) -> pd.DataFrame:
    """Blobs as their length, long text and long lists cut; everything else as it is."""
    shown = frame.copy(deep=False)
    for name in shown.columns:
        if shown[name].dtype.kind == "O":  # text has a type of its own, of this kind too
            values = list(shown[name])
            cells = [_cell(value) for value in values]
            if any(cell is not value for cell, value in zip(cells, values, strict=True)):
                # One kind in a column: short lists beside a cut one are text, too.
                cells = [str(c) if isinstance(c, list | np.ndarray) else c for c in cells]
                shown[name] = pd.Series(cells, shown.index, dtype=object)
    return shown


def _cell(value: object) -> object:
    """A value short enough for a cell on screen; the same object where it is already."""
    if isinstance(value, bytes | bytearray):
        return f"{len(value):,} bytes"
    if isinstance(value, str) and len(value) > _MAX_SHOWN:
        return f"{value[:_MAX_SHOWN]}… ({len(value):,} characters)"
    if isinstance(value, list | np.ndarray) and len(value) > _MAX_SHOWN:
        first = ", ".join(str(item) for item in value[:20])
        return f"[{first}, …] ({len(value):,} values)"
    return value


def _tables(titles: dict[str, str]) -> None:
    if len(titles) == 1:
        st.caption(f"Tables of {plain(shorten(next(iter(titles.values())), 60))}")
    else:
        names = ", ".join(f"{alias}: {shorten(title, 30)}" for alias, title in titles.items())
        st.caption(
            plain(
                f"{names}. Tables without a prefix are those of run1; write run2.token and so on."
            )
        )
    for table in schema.TABLES.values():
        with st.expander(table.name):
            grain = table.grain if table.grain.startswith("one") else f"one row per {table.grain}"
            st.caption(plain(f"{grain}: {table.meaning}"))
            st.dataframe(
                pd.DataFrame(
                    [(c.name, c.type, c.meaning) for c in table.columns],
                    columns=["Column", "Type", "Meaning"],
                ),
                hide_index=True,
                placeholder="",
                alt=f"Columns of the table {table.name}",
            )


def _take_example() -> None:
    name = st.session_state["sql_example"]
    if name in EXAMPLES:
        st.session_state["sql"] = EXAMPLES[name]


def _path(run_id: str) -> Path:
    return backstage.capture(run_id).path
