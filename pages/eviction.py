"""Which tokens would each policy evict? Masks, text, evidence, cost, and the run for real."""

from __future__ import annotations

from pages.parts import eviction_panels, eviction_view, run_page

run_page.show("Which tokens would each policy evict?", eviction_view.controls, eviction_panels.show)
