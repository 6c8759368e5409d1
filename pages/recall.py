"""Which queries know what the response will need? LAQ's view of a run."""

from __future__ import annotations

from pages.parts import recall_view as view
from pages.parts import run_page

run_page.show("Which queries know what the response will need?", view.controls, view.show)
