"""Which tokens come back after a silence? LazyEviction's view of a run."""

from __future__ import annotations

from pages.parts import recurrence_view as view
from pages.parts import run_page

run_page.show("Which tokens come back after a silence?", view.controls, view.show)
