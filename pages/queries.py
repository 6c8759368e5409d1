"""Do a rough draft's queries lie nearer to the response's than the prompt's do? (LAQ)"""

from __future__ import annotations

from pages.parts import queries_view as view
from pages.parts import run_page

run_page.show("Whose queries resemble the response's?", view.controls, view.show)
