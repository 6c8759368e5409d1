"""Scores that need no attention, and those that remember when an entry was last attended to."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kvpolicies.parameters import multiple_of_uniform
from kvpolicies.scores.base import Score, score
from kvpolicies.view import View


@score
@dataclass(frozen=True)
class Position(Score):
    """Newest is highest (StreamingLLM)."""

    name = "position"
    idea = "Recent tokens matter, and the first ones hold the softmax together."
    newest_first = True

    def score(self, view: View) -> Tensor:
        return view.entries.positions.float()


@score
@dataclass(frozen=True)
class KeyNorm(Score):
    """Minus the norm of the key: small keys attract attention."""

    name = "key_norm"
    idea = "Keys with a small norm tend to receive much attention."

    def score(self, view: View) -> Tensor:
        return torch.linalg.vector_norm(view.entries.keys, dim=-1, dtype=torch.float32).neg_()


@score
@dataclass(frozen=True)
class Random(Score):
    """A number per (seed, layer, head, position), the same in every run."""

    name = "random"
    idea = "The floor: no knowledge at all."

    seed: int = 0

    def score(self, view: View) -> Tensor:
        entries, positions = view.entries, view.entries.positions
        length = len(entries) if entries.aligned else int(positions.max()) + 1
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + view.layer) % 2**63)
        # Drawn position by position, so that a longer text begins with the same numbers.
        drawn = torch.rand((length, view.heads), generator=generator).to(positions.device).T
        return drawn.contiguous() if entries.aligned else drawn.gather(1, positions)


@score
@dataclass(frozen=True)
class Timestamp(Score):
    """Last step at which attention reached α; a new entry is stamped with its own step (RaaS).

    Prompt entries are stamped by the prompt's own rows, which carry steps up to 0.
    """

    name = "timestamp"
    idea = "A milestone token that is still being consulted keeps a fresh time stamp."
    needs = ("queries",)
    uses_attention = True
    ties_to_newest = True

    alpha: float | str = 1e-4

    def begin(self, view: View) -> None:
        stamp = (view.entries.positions - view.prompt_length + 1).int()
        if not view.pinned:
            name = f"stamp {self.alpha} {view.group_reduce} {view.heads} {view.seen}"
            stamp = torch.maximum(stamp, view.once(name, lambda: self._newest_active(view)))
        view.entries.statistics["stamp"] = stamp

    def _newest_active(self, view: View) -> Tensor:
        """The newest step whose prompt row reached α, -P where none did; int32 (kv_heads, n)."""
        never = -view.prompt_length
        newest = torch.full_like(view.entries.positions, never, dtype=torch.int32)
        for first, rows in view.prompt_rows():
            received = view.reduce(rows)  # (kv_heads, block, last position)
            steps = torch.arange(first, first + rows.shape[1], device=rows.device)
            steps = (steps - view.prompt_length + 1).int()[None, :, None]
            seen = (steps + view.prompt_length).float()
            alpha = self.alpha
            level = multiple_of_uniform(alpha) / seen if isinstance(alpha, str) else alpha
            active = torch.where(received >= level, steps, never).amax(1)
            newest[:, : active.shape[1]] = torch.maximum(newest[:, : active.shape[1]], active)
        return newest

    def update(self, view: View) -> None:
        stamp = view.entries.statistics["stamp"]
        active = view.received() >= view.uniform_multiple(self.alpha)
        stamp[active] = view.step
        stamp[:, -1] = view.step

    def score(self, view: View) -> Tensor:
        return view.entries.statistics["stamp"].float()


def _sigmoid(x: Tensor) -> Tensor:
    return 2 * torch.sigmoid(-x)


# Falling from 1 at x = 0 towards 0; all but the first are named without formulas in Table 5.
CURVES: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": _sigmoid,
    "exp": lambda x: torch.exp(-x),
    "tanh": lambda x: 1 - torch.tanh(x),
    "log": lambda x: 1 / (1 + torch.log1p(x)),
    "inverse": lambda x: 1 / (1 + x),
}


@score
@dataclass(frozen=True)
class Recurrence(Score):
    """LazyEviction: entries that came back before will come back (maximum recurrence interval).

    `stamp` is the last active step, `mri` the longest interval between two active steps.
    """

    name = "recurrence"
    idea = "A token's longest pause so far tells how long to wait before giving it up."
    needs = ("queries",)
    uses_attention = True

    alpha: float | str = 5e-4
    form: str = "released"
    h1: str = "sigmoid"
    h2: str = "sigmoid"

    def begin(self, view: View) -> None:
        for name in ("stamp", "mri"):
            view.entries.statistics[name] = torch.zeros_like(
                view.entries.positions, dtype=torch.int32
            )

    def update(self, view: View) -> None:
        stamp, mri = view.entries.statistics["stamp"], view.entries.statistics["mri"]
        stamp[:, -1] = view.step - 1  # the token appended at this step
        active = view.received() >= view.uniform_multiple(self.alpha)
        pause = view.step - stamp
        torch.where(active, torch.maximum(mri, pause), mri, out=mri)
        stamp.masked_fill_(active, view.step)

    def score(self, view: View) -> Tensor:
        stamp, mri = view.entries.statistics["stamp"], view.entries.statistics["mri"]
        return recurrence_score(view.step - stamp, mri, self.form, self.h1, self.h2)


def recurrence_score(
    pause: Tensor, mri: Tensor, form: str = "released", h1: str = "sigmoid", h2: str = "sigmoid"
) -> Tensor:
    """LazyEviction's H1 + H2 from the steps since last active and the MRI, float32.

    `form="printed"` takes the limits of the printed formulas where they divide by zero.
    """
    pause, mri = pause.float(), mri.float()
    if form == "released":
        x1 = 1 + pause / (mri + 1e-5)
        x2 = mri - 1
    else:
        x1 = torch.where(pause > 0, pause / mri, 0.0)  # mri 0: infinite, its curve's limit
        x2 = torch.where(mri == 1, math.inf, 1 / (mri - 1))
    total = torch.zeros_like(pause)
    if h1 != "off":
        total = total + CURVES[h1](x1)
    if h2 != "off":
        total = total + torch.where(mri == 0, 0.0, CURVES[h2](x2.clamp(min=0)))
    return total
