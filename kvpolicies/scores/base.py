"""What every score is, and the small maths that several share."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from kvpolicies.view import View


class Score:
    """How much each cached entry matters.

    Subclasses are frozen dataclasses whose fields are parameters (`kvpolicies.parameters`).
    `begin` gathers statistics at the end of the prompt, `update` after each generated token,
    `score` gives float32 (kv_heads, n): larger is kept longer, NaN is not ranked and kept first.
    """

    name: ClassVar[str]
    idea: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ("states",)
    after_prompt: ClassVar[bool] = True  # may also score while decoding
    uses_attention: ClassVar[bool] = False  # looks at every step's attention
    keeps_window: ClassVar[bool] = False  # the queries it looks through are entries it keeps
    sees_question: ClassVar[bool] = False  # ranks the context with what comes after it
    ties_to_newest: ClassVar[bool] = False
    newest_first: ClassVar[bool] = False  # the later, the higher: nothing needs to be compared
    history: int = 1  # newest queries it needs while decoding

    def begin(self, view: View) -> None:
        """Statistics of the prompt, into `view.entries.statistics`."""

    def update(self, view: View) -> None:
        """Statistics after one more token, from `view.attention`."""

    def score(self, view: View) -> Tensor:
        raise NotImplementedError


SCORES: dict[str, type[Score]] = {}


def score(kind: type[Score]) -> type[Score]:
    """Class decorator: make a score known under its name."""
    SCORES[kind.name] = kind
    return kind


def pooled(scores: Tensor, kernel: int, pool: str) -> Tensor:
    """Pooling along positions, stride 1, same length; (heads, n) -> (heads, n).

    The edges of an average pool divide by the entries really there.
    """
    if kernel == 1 or scores.shape[1] == 0:
        return scores
    sides = (kernel // 2, (kernel - 1) // 2)  # an even kernel leans left
    if pool == "max":
        padded = torch.nn.functional.pad(scores, sides, value=-math.inf)
        return torch.nn.functional.max_pool1d(padded, kernel, 1)
    both = torch.stack([scores, torch.ones_like(scores)])
    mean = torch.nn.functional.avg_pool1d(torch.nn.functional.pad(both, sides), kernel, 1)
    return mean[0] / mean[1]


def unranked_after(scores: Tensor, length: int) -> Tensor:
    """Scores of the first entries, NaN for the rest; (heads, m) -> (heads, length)."""
    return torch.nn.functional.pad(scores, (0, length - scores.shape[1]), value=float("nan"))
