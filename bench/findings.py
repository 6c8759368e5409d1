"""Measures what the Findings page sets beside the papers: `python -m bench.findings`.

Runs every specification in models/demo/findings/ on the embedded model and writes the rows beside
them: rows.parquet, recall.parquet (LAQ's recall over window starts) and about.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from analysis.recall import recall_curve
from analysis.study.claims import FOLDER, RECALL_BUDGET, STUDIES
from backend.capture import capture
from backend.demo.tasks import count_tokens
from backend.models import load
from backend.spec import CaptureSpec
from backend.study.spec import load_spec
from backend.study.tasks import generate
from backend.study.work import make_study, run_study
from cache_store.library import Library
from cache_store.study import TIMINGS, StudyReader

RECALL_PROMPTS = 12
RECALL_TOKENS = 500
OFFSETS = range(-16, 9)


def study_rows(home: Path, name: str) -> pd.DataFrame:
    spec, sets = load_spec(FOLDER / f"{name}.toml")
    folder = run_study(home, make_study(home, spec, sets))
    rows = StudyReader(folder).rows().drop(columns=[*TIMINGS, "facts"])
    return rows.assign(study=name)


def recall_rows(home: Path) -> pd.DataFrame:
    """Mean recall over layers and heads of windows of 8 queries, by prompt and window start."""
    examples = generate(
        "multi_key",
        count=RECALL_PROMPTS,
        seed=10,
        options={"length": RECALL_TOKENS, "wording": "demo"},
        count_tokens=count_tokens,
    )
    loaded = load("demo")
    found = []
    for example in examples:
        spec = CaptureSpec(example.context, example.question, max_new_tokens=24)
        run_id = capture(spec, home, loaded=loaded)
        trace = Library(home).open(run_id).trace()
        recall = recall_curve(trace, budget=RECALL_BUDGET, offsets=OFFSETS, width=8)
        means = np.asarray(recall).reshape(len(OFFSETS), -1).mean(axis=1)
        found += [
            {"prompt": example.id, "offset": offset, "recall": float(mean)}
            for offset, mean in zip(OFFSETS, means, strict=True)
        ]
    return pd.DataFrame(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="*", help="studies to run; nothing is written")
    parser.add_argument(
        "--home", type=Path, help="keep the studies there, and go on with what is unfinished"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        home = arguments.home or Path(folder)
        tables = []
        for name in arguments.only or STUDIES:
            tables.append(study_rows(home, name))
            print(f"{name}: {len(tables[-1])} rows, {time.monotonic() - started:.0f} s", flush=True)
            columns = ["policy", "ratio"]
            print(tables[-1].groupby(columns, sort=False)["score"].mean().to_string(), flush=True)
        if arguments.only:
            return
        recall = recall_rows(home)
    pd.concat(tables, ignore_index=True).to_parquet(FOLDER / "rows.parquet", index=False)
    recall.to_parquet(FOLDER / "recall.parquet", index=False)
    about = {"model_revision": load("demo").revision}
    (FOLDER / "about.json").write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
