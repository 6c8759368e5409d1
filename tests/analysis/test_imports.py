"""Looking at stored rows must not load torch: it costs seconds and hundreds of megabytes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.synthetic import Synthetic

LOOK = """
import sys
from analysis import attention
from analysis.plotly_renderer import to_plotly
from cache_store.reader import Capture

capture = Capture.open(sys.argv[1])
to_plotly(attention.overview(capture))
to_plotly(attention.step_statistics(capture, 0, 1, ["entropy"]))
to_plotly(attention.received_attention(capture, 0, 1))
attention.text_view(capture, "mean", "mean", 3)
attention.top_tokens(capture, 0, 1, 3)
loaded = {"torch", "transformers", "streamlit", "matplotlib", "umap"} & set(sys.modules)
assert not loaded, loaded
"""


def test_stored_rows_are_shown_without_torch(tmp_path: Path) -> None:
    path = Synthetic().write(tmp_path)
    subprocess.run([sys.executable, "-c", LOOK, str(path)], check=True, timeout=60)


def test_the_data_modules_do_not_load_plotly() -> None:
    code = "import sys, analysis.attention, analysis.eviction; assert 'plotly' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
