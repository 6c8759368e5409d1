"""How much does each layer deserve to keep? KVCompose's view of a run."""

from __future__ import annotations

from pages.parts import budgets_view as view
from pages.parts import run_page

run_page.show("How much does each layer deserve to keep?", view.controls, view.show)
