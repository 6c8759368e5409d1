"""What the papers claim, set beside what a shipped study of the embedded model measured.

A claim is a list of comparisons over the same prompts. A comparison holds when the whole 95%
bootstrap interval of its difference lies above zero, is reversed when all of it lies below, and
cannot be seen otherwise. A claim holds when all of its comparisons do, does not hold when one is
reversed, and cannot be seen at this size in every other case.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.errors import AnalysisError
from analysis.study.rows import CONFIDENCE, FULL, Matrix, Study
from analysis.words import number

FOLDER = Path(__file__).parents[2] / "models" / "demo" / "findings"
STUDIES = ("needles", "arithmetic", "allocation", "digits")
RECALL = "recall"
RECALL_BUDGET = 64  # entries that recall is taken of
HOLDS, REVERSED, UNSEEN = "holds", "does not hold", "cannot be seen at this size"
CEILING, FLOOR = 0.98, 0.02
LAGS = (64, 128)


@dataclass(frozen=True)
class Comparison:
    """`better` is said to be above `worse`: policies, each the mean over the study's sizes, or
    window starts of recall. A side that is several policies is their mean, and has a name."""

    better: str
    worse: str
    better_of: tuple[str, ...] = ()
    worse_of: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        return f"{self.better} over {self.worse}"

    @property
    def sides(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The policies of both sides."""
        return self.better_of or (self.better,), self.worse_of or (self.worse,)


@dataclass(frozen=True)
class Claim:
    """What a paper says, and the comparisons that it comes down to in a study."""

    title: str
    said: str
    source: str
    study: str
    comparisons: tuple[Comparison, ...]
    note: str = ""  # what to know about the comparison on this model


@dataclass(frozen=True)
class Measured:
    """A comparison with its numbers: mean of both sides, difference, interval, prompts."""

    comparison: Comparison
    better: float
    worse: float
    difference: float
    low: float
    high: float
    prompts: int
    better_evicted: float = float("nan")  # mean share evicted of each side, where it has one
    worse_evicted: float = float("nan")

    @property
    def verdict(self) -> str:
        if self.low > 0:
            return HOLDS
        return REVERSED if self.high < 0 else UNSEEN

    @property
    def reason(self) -> str:
        """Why nothing can be seen, where that is so."""
        if self.verdict != UNSEEN:
            return ""
        if min(self.better, self.worse) >= CEILING:
            return "both answer nearly everything"
        if max(self.better, self.worse) <= FLOOR:
            return "both answer nearly nothing"
        return "the difference is within chance"


def _kept(lag: int) -> tuple[int, ...]:
    """Entries kept per partition, rL, for a partition of L entries."""
    return lag // 8, lag // 4, lag // 2


def claims() -> tuple[Claim, ...]:
    """The papers' claims that the shipped study looks at."""
    return (
        Claim(
            "The response's first token knows what is needed",
            "Windows of queries recall more of what the response needs as soon as they begin at "
            "its first token, even after all of the question was read.",
            "LAQ, Figure 2",
            RECALL,
            (Comparison("recall from offset 0", "recall from offset −8"),),
        ),
        Claim(
            "LAQ over SnapKV over H2O on needles at small budgets",
            "With few entries, pseudo queries find the needle where the prompt's last queries and "
            "accumulated attention miss it.",
            "LAQ, Table 2 and Figure 4",
            "needles",
            (
                Comparison("LAQ++", "SnapKV"),
                Comparison("LAQ", "SnapKV"),
                Comparison("SnapKV", "H2O"),
            ),
        ),
        Claim(
            "LazyEviction over H2O, TOVA and RaaS on worked arithmetic",
            "At half the cache, waiting for tokens that come back keeps answers right that "
            "step-by-step eviction loses.",
            "LazyEviction, Table 1",
            "arithmetic",
            tuple(Comparison("LazyEviction", other) for other in ("H2O", "TOVA", "RaaS")),
            "The paper evicts half of the cache. The study goes from a tenth to a half, and the "
            "mean over its sizes is compared.",
        ),
        Claim(
            "An observation window helps the others, but less",
            "Evicting every W steps improves H2O, TOVA and RaaS, and LazyEviction stays ahead of "
            "them.",
            "LazyEviction, Table 3",
            "arithmetic",
            tuple(
                comparison
                for name in ("H2O", "TOVA", "RaaS")
                for comparison in (
                    Comparison(f"{name} with a window", name),
                    Comparison("LazyEviction", f"{name} with a window"),
                )
            ),
        ),
        Claim(
            "KVCompose over uniform and pyramid budgets",
            "With the same scores, ranking composite tokens over all layers beats a fixed split.",
            "KVCompose, Tables 2 and 3",
            "allocation",
            tuple(
                Comparison("KVCompose", f"KVCompose's scores, {other}")
                for other in ("uniform", "pyramid")
            ),
        ),
        Claim(
            "LagKV over the key norm on 64 digits",
            "In the same partitions, scores relative to the next partition keep digits that the "
            "key norm loses.",
            "LagKV, Figure 5",
            "digits",
            tuple(
                Comparison(
                    f"LagKV, L {lag}",
                    f"{norm}, L {lag}",
                    tuple(f"LagKV, L {lag}, rL {kept}" for kept in _kept(lag)),
                    tuple(f"{norm}, L {lag}, rL {kept}" for kept in _kept(lag)),
                )
                for norm in ("L2 norm", "L2 norm in every layer")
                for lag in LAGS
            ),
            "As published, the key norm keeps the first two layers whole, a large part of a model "
            "with few layers. At equal size compare the rows in which it compresses every layer.",
        ),
        Claim(
            "LagKV needs enough entries per partition",
            "The score of 64 digits rises with the entries kept per partition, rL.",
            "LagKV, Figure 2",
            "digits",
            tuple(
                Comparison(f"LagKV, L {lag}, rL {lag // 2}", f"LagKV, L {lag}, rL {lag // 8}")
                for lag in LAGS
            ),
        ),
        Claim(
            "SAGE-KV over StreamingLLM",
            "Picking by the last token's attention once beats keeping sinks and recent tokens.",
            "SAGE-KV, Figure 2",
            "needles",
            (Comparison("SAGE-KV", "StreamingLLM"),),
        ),
    )


def measure(claim: Claim, study: Study | None, recall: pd.DataFrame) -> list[Measured]:
    """Every comparison of a claim with its numbers. Raises AnalysisError for missing rows."""
    measured = []
    for comparison in claim.comparisons:
        if claim.study == RECALL:
            measured.append(compared(comparison, *_recall_pairs(recall)))
            continue
        assert study is not None
        found = compared(comparison, *_pairs(study, comparison))
        evicted = [
            float(study.frame.loc[study.frame["policy"].isin(names), "ratio"].mean())
            for names in comparison.sides
        ]
        measured.append(replace(found, better_evicted=evicted[0], worse_evicted=evicted[1]))
    return measured


def compared(comparison: Comparison, values: np.ndarray, groups: np.ndarray) -> Measured:
    """Numbers of a comparison from (prompts, 2), the side said to be better first."""
    three = np.column_stack([values, values[:, 0] - values[:, 1]])
    matrix = Matrix(three, groups)
    means = matrix.means
    drawn = matrix.resampled()[:, 2]
    low, high = np.percentile(drawn, CONFIDENCE)
    return Measured(
        comparison,
        float(means[0]),
        float(means[1]),
        float(means[2]),
        float(low),
        float(high),
        len(values),
    )


def verdict(measured: list[Measured]) -> str:
    """Of a whole claim, from the verdicts of its comparisons."""
    found = {one.verdict for one in measured}
    if REVERSED in found:
        return REVERSED
    return HOLDS if found == {HOLDS} else UNSEEN


def _pairs(study: Study, comparison: Comparison) -> tuple[np.ndarray, np.ndarray]:
    """Scores (prompts, 2) of both sides over the prompts that both have, and their tasks."""
    matrix = study.matrix("score")
    sides = []
    for names in comparison.sides:
        places = [i for i, place in enumerate(study.places) if place.policy in names]
        if len({study.places[i].policy for i in places}) < len(names):
            raise AnalysisError(f"The shipped study has no {', '.join(names)}.")
        sides.append(matrix.values[:, places].mean(axis=1))
    pair = np.column_stack(sides)
    known = np.isfinite(pair).all(axis=1)
    return pair[known], matrix.groups[known]


def _recall_pairs(recall: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    by_prompt = recall.pivot(index="prompt", columns="offset", values="recall")
    values = by_prompt[[0, -8]].to_numpy(np.float64)
    return values, np.zeros(len(values), np.int64)


@dataclass(frozen=True)
class Findings:
    """The shipped results: rows by study, recall by prompt and offset, the weights' revision."""

    studies: Mapping[str, Study]
    recall: pd.DataFrame
    model_revision: str

    def measured(self, claim: Claim) -> list[Measured]:
        return measure(claim, self.studies.get(claim.study), self.recall)

    def basis(self, study: str) -> str:
        """What a study's numbers rest on, in one sentence: prompts, sizes, the full cache."""
        rows = self.studies[study]
        full = rows.frame[rows.frame["policy_key"] == FULL]
        score = float(rows.matrix("score").means[rows.place(FULL, None)])
        sized = any(place.size is not None for place in rows.places)
        at = f", {_sizes(rows)}" if sized else ""
        return (
            f"{len(full):,} prompts of {_span(full['prompt_tokens'])} tokens{at}. The full cache "
            f"scores {number(score)} and writes {_span(full['response_tokens'])} tokens; what it "
            "does not answer, no policy can lose."
        )


def _span(counts: pd.Series) -> str:
    """The smallest and largest of some whole numbers: "110" or "96 to 110"."""
    low, high = int(counts.min()), int(counts.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _sizes(study: Study) -> str:
    """The sizes of a study: "budgets 64 and 128" or "50% and 75% evicted"."""
    shares = study.axis == "ratio"
    words = [f"{100 * size:.3g}%" if shares else f"{size:,.0f}" for size in study.sizes]
    listed = words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
    return f"{listed} evicted" if shares else f"budget{'s' * (len(words) > 1)} {listed}"


@lru_cache(maxsize=2)
def load(folder: Path = FOLDER) -> Findings:
    """The results in `folder`. Raises AnalysisError where they are not there."""
    try:
        rows = pd.read_parquet(folder / "rows.parquet")
        recall = pd.read_parquet(folder / "recall.parquet")
        about = json.loads((folder / "about.json").read_text())
    except (OSError, ValueError) as error:
        raise AnalysisError(
            "The shipped results are not there: run `python -m bench.findings`."
        ) from error
    studies = {}
    for name in STUDIES:
        spec = tomllib.loads((folder / f"{name}.toml").read_text())
        own = rows[rows["study"] == name].drop(columns="study").reset_index(drop=True)
        studies[name] = Study(f"findings/{name}", spec["title"], spec, own)
    return Findings(studies, recall, str(about["model_revision"]))
