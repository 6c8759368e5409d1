"""How a response is scored against its references, always from 0 (nothing right) to 1.

Each score is a row of `SCORES`. Agreement, NLL and KL are no scores of this kind: they compare with
the full cache's own response and need no reference.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any


@dataclass(frozen=True)
class Score:
    """`measure(response, answers)` is in 0..1; `answers` holds at least one reference."""

    key: str
    label: str
    meaning: str
    measure: Callable[[str, Sequence[str]], float]
    source: str = ""

    def __call__(self, response: str, answers: Sequence[str]) -> float:
        """Raises ValueError without references: such prompts are compared by agreement."""
        if not answers:
            raise ValueError(f"{self.key} needs at least one reference answer")
        return float(self.measure(response, answers))


def normalised(text: str) -> str:
    """Lower case without punctuation, articles and repeated spaces (SQuAD, LongBench)."""
    bare = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def exact(response: str, answers: Sequence[str]) -> float:
    return float(any(normalised(response) == normalised(answer) for answer in answers))


def substring_share(response: str, answers: Sequence[str]) -> float:
    return sum(answer.lower() in response.lower() for answer in answers) / len(answers)


def substring_any(response: str, answers: Sequence[str]) -> float:
    return float(any(answer.lower() in response.lower() for answer in answers))


def digit_share(response: str, answers: Sequence[str]) -> float:
    """Mean over the references; a reference without digits counts as wrong."""
    runs = re.findall(r"\d+", response)
    return sum(_digits_at_their_place(runs, answer) for answer in answers) / len(answers)


def _digits_at_their_place(runs: list[str], answer: str) -> float:
    wanted = "".join(re.findall(r"\d", answer))
    if not wanted:
        return 0.0
    right = (sum(a == b for a, b in zip(run, wanted, strict=False)) for run in runs)
    return max(right, default=0) / len(wanted)


def final_number(response: str, answers: Sequence[str]) -> float:
    numbers = re.findall(r"-?\d+(?:\.\d+)?", response.replace(",", ""))
    wanted = [re.findall(r"-?\d+(?:\.\d+)?", answer.replace(",", "")) for answer in answers]
    return float(
        bool(numbers) and any(found and float(found[-1]) == float(numbers[-1]) for found in wanted)
    )


def f1(response: str, answers: Sequence[str]) -> float:
    return max(_f1(_words(response), _words(answer)) for answer in answers)


def _words(text: str) -> list[str]:
    """Words after normalising; every character of a script written without spaces is a word."""
    unspaced = r"\u3040-\u30ff\u3400-\u9fff"
    return re.findall(rf"[{unspaced}]|[^\s{unspaced}]+", normalised(text))


def _f1(response: list[str], answer: list[str]) -> float:
    common = (Counter(response) & Counter(answer)).total()
    if not common:
        return 0.0
    precision, recall = common / len(response), common / len(answer)
    return 2 * precision * recall / (precision + recall)


def rouge_l(response: str, answers: Sequence[str]) -> float:
    return max(_rouge().score(answer, response)["rougeL"].fmeasure for answer in answers)


@lru_cache(maxsize=1)
def _rouge() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rougeL"], use_stemmer=False)


SCORES: dict[str, Score] = {
    score.key: score
    for score in (
        Score(
            "exact",
            "exact",
            "1 where the response equals a reference, punctuation, case and articles aside",
            exact,
        ),
        Score(
            "substring_share",
            "references found",
            "share of the references that occur in the response, case aside",
            substring_share,
            "RULER, string_match_all",
        ),
        Score(
            "substring_any",
            "any reference found",
            "1 where at least one reference occurs in the response, case aside",
            substring_any,
            "RULER, string_match_part",
        ),
        Score(
            "digit_share",
            "digits right",
            "share of the reference's digits that stand at their place in the response's best run "
            "of digits",
            digit_share,
            "LagKV, partial match of 64 digits",
        ),
        Score(
            "final_number",
            "final number",
            "1 where the last number of the response is the last number of a reference",
            final_number,
            "GSM8K",
        ),
        Score(
            "f1",
            "F1",
            "harmonic mean of the precision and recall of words, the best over the references",
            f1,
            "SQuAD, LongBench qa_f1_score",
        ),
        Score(
            "rouge_l",
            "ROUGE-L",
            "F-measure of the longest common subsequence of words (English letters and digits), "
            "the best over the references",
            rouge_l,
            "Lin 2004, by the library rouge-score",
        ),
    )
}
