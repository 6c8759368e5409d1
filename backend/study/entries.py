"""The entries of a study's specification: prompts, policies, and the cells that they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cache_store.errors import KVScopeError
from kvpolicies.choice import to_text

MEASURES = ("score", "agreement", "nll", "kl", "latency")
DEFAULT_MEASURES = MEASURES[:-1]
MOST_PROMPTS = 1_000_000  # of a task
DEFAULT_RATIOS = (0.1, 0.25, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # KVCompose, Tables 2 and 3
SCOPES = ("prompt", "context")
SIZES = ("budget", "compression_ratio", "keep_ratio")  # options that fix a policy's size
NEEDS_FUTURE = ("future_attention", "next_use")
FULL = "full"


class StudyError(KVScopeError):
    """A study cannot be specified or run as asked; the message says where and why."""


@dataclass(frozen=True)
class TaskSpec:
    """Prompts of one task, or of one uploaded set. `count` None takes every row of a set."""

    task: str = ""
    set: str = ""
    count: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    scoring: str | None = None
    max_new_tokens: int | None = None


@dataclass(frozen=True)
class PolicySpec:
    """A policy without its size, in the form of `kvpolicies.choice`. `sized` says whether it is
    run at every ratio or budget of the study; the others are one cell each."""

    choice: Mapping[str, Any]
    name: str
    sized: bool

    @property
    def key(self) -> str:
        """The catalogue's key; a combination's three choices otherwise."""
        return str(
            self.choice.get("key") or to_text({**self.choice, "options": {}}).removesuffix("()")
        )


@dataclass(frozen=True)
class Cell:
    """One policy at one size, to be run on every prompt; no policy is the full cache."""

    policy: PolicySpec | None = None
    ratio: float | None = None
    budget: int | None = None

    @property
    def choice(self) -> dict[str, Any]:
        """The whole choice, its size included."""
        if self.policy is None:
            return {"key": FULL, "options": {}}
        options = dict(self.policy.choice["options"])
        if self.ratio is not None:
            options["compression_ratio"] = self.ratio
        if self.budget is not None:
            options["budget"] = self.budget
        return {**self.policy.choice, "options": options}
