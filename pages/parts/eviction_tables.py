"""How the columns of the Eviction page's tables are shown."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st


def column(label: str, unit: str, values: pd.Series, help_text: str = "") -> Any:
    """One column: its label with the unit, numbers with three digits, bytes as kB or MB."""
    shown = help_text or None
    if unit == "bytes":
        return st.column_config.NumberColumn(label, help=shown, format="bytes")
    label = f"{label} ({unit})" if unit not in ("", "share") else label
    if values.dtype == bool:
        return st.column_config.CheckboxColumn(label, help=shown)
    if values.dtype == object:
        return st.column_config.TextColumn(label, help=shown, pinned=label == "policy")
    return st.column_config.NumberColumn(label, help=shown, format="%.3g")
