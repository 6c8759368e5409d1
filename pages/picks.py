"""Which entries does each query head pick? SAGE-KV's partition, picks and sliding window."""

from __future__ import annotations

from pages.parts import picks_view as view
from pages.parts import run_page

run_page.show("Which entries does each query head pick?", view.controls, view.show)
