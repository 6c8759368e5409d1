"""What does each partition keep, and why? LagKV on the sequence, step by step."""

from __future__ import annotations

from pages.parts import partitions_view as view
from pages.parts import run_page

run_page.show("What does each partition keep?", view.controls, view.show)
