"""How the columns of the Eviction page's tables are shown."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st


def column(label: str, unit: str, values: pd.Series, help_text: str = "") -> Any:
    """One column: its label and unit, counts whole, other numbers with three digits, bytes as MB.

    Units that make a label long stand in its help."""
    unit_words = f"In {unit}." if unit in ("entries", "attention mass") else ""
    shown = f"{help_text} {unit_words}".strip() or None
    if unit == "bytes":
        return st.column_config.NumberColumn(label, help=shown, format="bytes")
    label = f"{label} ({unit})" if unit and unit != "share" and not unit_words else label
    if values.dtype == bool:
        return st.column_config.CheckboxColumn(label, help=shown)
    if not pd.api.types.is_numeric_dtype(values):
        return st.column_config.TextColumn(label, help=shown, pinned=label == "policy")
    known = values.dropna()
    counts = bool(((known == known.round()) | (known.abs() >= 100)).all())
    return st.column_config.NumberColumn(label, help=shown, format="%,.0f" if counts else "%.3g")
