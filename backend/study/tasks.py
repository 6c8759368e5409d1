"""Tasks that a study generates: prompts of an exact length with known answers, in RULER's spirit.

A task is a row of `TASKS`: what it asks, its options and the scores that fit it. `generate` draws
prompts from a seed; more prompts of the same seed begin with the same ones. Nothing here imports
torch. `wording` "demo" is the only form the embedded model understands (backend.demo.tasks);
"english" puts the same facts into an instruction for any model.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from backend.spec import PromptError
from backend.study import words
from backend.study.filling import Draft, fitted

WORDINGS = ("demo", "english")


@dataclass(frozen=True)
class Example:
    """One prompt of a study, `context + question`, joined without anything in between.

    `answers` are the references of the score `scoring` (a key of `SCORES`); without any the
    response is only compared with the full cache's. `facts` are plain JSON values for figures:
    `length` tokens asked for, `depth` of the evidence from 0 (start) to 1 (end), `evidence` as
    character ranges of the prompt, and the options it was drawn with.
    """

    id: str
    task: str
    context: str
    question: str
    answers: tuple[str, ...]
    scoring: str
    max_new_tokens: int
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Option:
    """One option of a task. `kind`: "int", "ints" (one or several), "shares" (one or several
    numbers from 0 to 1, or none: drawn evenly) or "choice"."""

    name: str
    meaning: str
    kind: str
    default: Any
    low: float = 0
    high: float = math.inf
    choices: tuple[str, ...] = ()

    def check(self, task: str, value: Any) -> Any:
        """`value` in its one form (several values as a list). Raises PromptError naming it."""
        if self.kind == "choice":
            if value not in self.choices:
                raise self._refused(task, value, f"one of {', '.join(self.choices)}")
            return value
        several = self.kind in ("ints", "shares")
        values = value if several and isinstance(value, list | tuple) else [value]
        whole = self.kind != "shares"
        kind = "a whole number" if whole else "a number"
        if self.high < math.inf:
            expected = f"{kind} from {self.low:,g} to {self.high:,.10g}"
        else:
            expected = f"{kind} of at least {self.low:g}"
        for number in values:
            right = type(number) is int or (not whole and type(number) is float)
            if not right or not self.low <= number <= self.high:
                raise self._refused(task, number, expected)
        if several and not values and self.kind == "ints":
            raise self._refused(task, value, f"{expected}, or several of them")
        return list(dict.fromkeys(values)) if several else value

    def _refused(self, task: str, value: Any, expected: str) -> PromptError:
        return PromptError(f"{task}: {self.name} is {json.dumps(value)}, give {expected}.")


@dataclass(frozen=True)
class Task:
    """A kind of prompt that can be drawn. `draft(rng, options)` gives everything but the filler;
    the first of `scorings` is the default."""

    name: str
    label: str
    idea: str
    draft: Callable[[random.Random, Mapping[str, Any]], Draft]
    scorings: tuple[str, ...]
    options: tuple[Option, ...]
    wordings: tuple[str, ...] = WORDINGS

    @property
    def scoring(self) -> str:
        return self.scorings[0]

    def checked(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """All options with their defaults. Raises PromptError, one sentence."""
        known = {option.name: option for option in self.options}
        for name in options:
            if name not in known:
                raise PromptError(f"{self.name} has no option '{name}': it has {', '.join(known)}.")
        values = {
            name: option.check(self.name, options.get(name, option.default))
            for name, option in known.items()
        }
        limits = words.LIMITS.get(self.name)
        if limits is not None and (reason := limits(values)):
            raise PromptError(f"{self.name}: {reason}.")
        return values


LENGTH = Option(
    "length", "prompt tokens, the question included", "ints", [1000], low=32, high=1_000_000
)
DEPTH = Option(
    "depth",
    "where the asked fact stands, 0 at the start and 1 at the end of the context; none: anywhere",
    "shares",
    [],
    high=1,
)


def _task(
    name: str,
    label: str,
    idea: str,
    draft: Callable[..., Draft],
    scorings: tuple[str, ...],
    *options: Option,
    depth: bool = False,
    wordings: tuple[str, ...] = WORDINGS,
) -> Task:
    wording = Option(
        "wording",
        "demo: as the embedded model was taught",
        "choice",
        wordings[-1],
        choices=wordings,
    )
    every = (LENGTH, *((DEPTH,) if depth else ()), *options, wording)
    return Task(name, label, idea, draft, scorings, every, wordings)


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        _task(
            "passkey",
            "Passkey",
            "One number hidden in everyday prose is to be repeated.",
            words.passkey,
            ("digit_share", "substring_share"),
            Option("digits", "digits of the number", "int", 7, low=1, high=128),
            depth=True,
        ),
        _task(
            "multi_key",
            "One of several codes",
            "Many places have a code each; the codes of some of them are asked for.",
            words.multi_key,
            ("substring_share", "digit_share"),
            Option("keys", "places with a code", "int", 8, low=1, high=len(words.KEYS)),
            Option("questions", "codes asked for", "int", 1, low=1, high=8),
            Option("digits", "digits of a code", "int", 5, low=1, high=16),
            depth=True,
        ),
        _task(
            "multi_value",
            "All codes of one place",
            "One place has several codes; all of them are asked for.",
            words.multi_value,
            ("substring_share", "digit_share"),
            Option("values", "codes of the asked place", "int", 4, low=2, high=16),
            Option("keys", "places with a code", "int", 4, low=1, high=len(words.KEYS)),
            Option("digits", "digits of a code", "int", 5, low=1, high=16),
            wordings=("english",),
        ),
        _task(
            "variable_tracing",
            "Variable tracing",
            "Variables refer to one another; the chain has to be followed.",
            words.variable_tracing,
            ("substring_share",),
            Option("hops", "references from the first variable to the number", "int", 3, 1, 8),
            Option("chains", "chains, one of which is asked for", "int", 2, 1, 8),
            Option("digits", "digits of the number", "int", 5, low=1, high=16),
        ),
        _task(
            "common_words",
            "Common words",
            "A numbered list repeats a few words often; these are asked for.",
            words.common_words,
            ("substring_share", "f1"),
            Option("common", "words that repeat", "int", 10, low=1, high=20),
            Option("repeats", "times a common word occurs", "int", 6, low=2, high=100),
            wordings=("english",),
        ),
        _task(
            "frequent_words",
            "Frequent words",
            "Made-up words occur as often as Zipf's law says; the three most frequent are asked "
            "for.",
            words.frequent_words,
            ("substring_share", "f1"),
            Option("letters", "letters of a made-up word", "int", 6, low=3, high=12),
            wordings=("english",),
        ),
        _task(
            "arithmetic",
            "Worked arithmetic",
            "A list of additions and subtractions is worked through, looking counts up in the "
            "text.",
            words.arithmetic,
            ("final_number", "rouge_l"),
            Option("steps", "additions and subtractions", "int", 8, low=1, high=26),
            Option("items", "goods that have a count", "int", 4, low=1, high=20),
        ),
    )
}


def default_wording(task: str, model_id: str) -> str:
    """The wording of `task` that `model_id` understands. Raises PromptError where the embedded
    model was never taught the task."""
    wordings = find(task).wordings
    if model_id != "demo":
        return "english"
    if "demo" not in wordings:
        taught = [name for name, row in TASKS.items() if "demo" in row.wordings]
        raise PromptError(
            f"The embedded model was not taught {task}: choose {', '.join(taught)}, or a "
            "language model."
        )
    return "demo"


def find(name: str) -> Task:
    """Raises PromptError for a task that does not exist."""
    if name not in TASKS:
        raise PromptError(f"There is no task '{name}': choose one of {', '.join(TASKS)}.")
    return TASKS[name]


def prompts(task: str, count: int, options: Mapping[str, Any]) -> int:
    """How many prompts `generate` gives: `count` for every length and depth."""
    values = find(task).checked(options)
    return count * len(values["length"]) * max(1, len(values.get("depth", [])))


def generate(
    task: str,
    *,
    count: int,
    seed: int,
    options: Mapping[str, Any],
    count_tokens: Callable[[str], int],
) -> list[Example]:
    """`count` prompts for every combination of length and depth, drawn from `seed`.

    Each prompt has exactly the asked number of tokens by `count_tokens`, or a few less where no
    filler fits. Asking for more prompts leaves the first ones as they are. Raises PromptError for
    an option that cannot be used and where a task alone is longer than asked.
    """
    row = find(task)
    values = row.checked(options)
    if count < 1:
        raise PromptError(f"{task}: count is {count}, ask for at least one prompt.")
    places = list(itertools.product(values["length"], values.get("depth") or [None]))
    drawn = {name: value for name, value in values.items() if name not in ("length", "depth")}
    examples: list[Example] = []
    for number in range(count):
        for length, depth in places:
            chosen = {**drawn, "depth": depth}
            rng = random.Random(json.dumps([seed, task, number, length, chosen], sort_keys=True))
            draft = row.draft(rng, chosen)
            name = f"{task}-{len(examples)}"
            context, question, facts = fitted(draft, length, rng, count_tokens, task)
            facts |= {"length": length, **drawn}
            if depth is not None:
                facts["depth"] = depth
            examples.append(
                Example(
                    name,
                    task,
                    context,
                    question,
                    draft.answers,
                    row.scoring,
                    count_tokens(draft.worked) + draft.slack,
                    facts,
                )
            )
    return examples
