"""Markers on paper: borders, the step, and the cells a reader chose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matplotlib.patches import Rectangle

from analysis.colours import SELECTED
from analysis.figure import Marker
from analysis.paper.texts import shown
from analysis.paper.venues import INK, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LABEL_CHARACTERS = 24


def draw_marker(axes: Axes, marker: Marker, style: Style) -> None:
    """A line across, or the outline of a cell; the reader's own choice drawn stronger."""
    colour, dash = (SELECTED, "-") if marker.selected else (INK, (0, (1, 1.4)))
    width = 1.0 if marker.selected else 0.7
    label = shown(marker.label, LABEL_CHARACTERS)
    looks: dict[str, Any] = {
        "fontsize": style.font_pt * 0.85,
        "color": colour,
        "clip_on": False,
        "bbox": {"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.6},
    }
    if marker.kind == "cell":
        assert marker.x is not None and marker.y is not None
        axes.add_patch(
            Rectangle(
                (marker.x - 0.5, marker.y - 0.5),
                1,
                1,
                fill=False,
                edgecolor=colour,
                linewidth=1.2,
                linestyle="-" if marker.selected else dash,
            )
        )
        if label:
            axes.annotate(
                label,
                (marker.x, marker.y),
                xytext=(2, 2),
                textcoords="offset points",
                annotation_clip=True,
                **looks,
            ).set_in_layout(False)
        return
    if marker.kind == "x":
        assert marker.x is not None
        axes.axvline(marker.x, color=colour, linestyle=dash, linewidth=width)
        if label:
            low, high = axes.get_xlim()
            right = (marker.x - low) / (high - low) > 0.5
            axes.annotate(
                label,
                (marker.x, 1),
                xycoords=axes.get_xaxis_transform(),
                xytext=(-2 if right else 2, -2),
                textcoords="offset points",
                ha="right" if right else "left",
                va="top",
                **looks,
            ).set_in_layout(False)
        return
    assert marker.y is not None
    axes.axhline(marker.y, color=colour, linestyle=dash, linewidth=width)
    if label:
        axes.annotate(
            label,
            (1, marker.y),
            xycoords=axes.get_yaxis_transform(),
            xytext=(-2, 1.5),
            textcoords="offset points",
            ha="right",
            va="bottom",
            **looks,
        ).set_in_layout(False)
