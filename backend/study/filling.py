"""Fills a text with harmless units until a prompt has exactly the wanted number of tokens."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from backend.spec import PromptError

POOL = 200  # units to choose the last ones from
REPLACED = 4  # most units that are exchanged at once to meet the length
ROUNDS = 24
NEARLY = 8  # tokens


@dataclass(frozen=True)
class Draft:
    """A task before its filler.

    pieces: facts to hide, in the order of `places`, their shares of the filler that come before
    them (0 to 1, ascending). unit: draws one unit of filler, which must hold none of the facts.
    evidence: indices into `pieces` of what the answer rests on. worked: the answer as a model
    would write it; `slack` more tokens may be generated. join: how pieces become the context.
    """

    opening: str
    pieces: tuple[str, ...]
    places: tuple[float, ...]
    question: str
    answers: tuple[str, ...]
    worked: str
    unit: Callable[[random.Random], str]
    evidence: tuple[int, ...] = ()
    slack: int = 8
    join: Callable[[list[str]], str] = " ".join


def fitted(
    draft: Draft,
    tokens: int,
    rng: random.Random,
    count_tokens: Callable[[str], int],
    task: str,
) -> tuple[str, str, dict[str, Any]]:
    """Context, question and facts of a prompt of `tokens` tokens, or a few less.

    Raises PromptError where the draft alone is longer.
    """

    def length(units: list[str]) -> int:
        return count_tokens(_layout(draft, units)[0] + draft.question)

    least = length([])
    if least > tokens:
        raise PromptError(f"{task} needs {least} tokens, more than the {tokens} asked.")
    units = _exact(draft, tokens, length, _costs(count_tokens), rng)
    context, starts = _layout(draft, units)
    facts: dict[str, Any] = {}
    if draft.evidence:
        spans = sorted((starts[i], starts[i] + len(draft.pieces[i])) for i in draft.evidence)
        facts["evidence"] = [list(span) for span in spans]
        facts["depth"] = round(spans[0][0] / max(1, len(context)), 2)
    return context, draft.question, facts


def _layout(draft: Draft, units: list[str]) -> tuple[str, list[int]]:
    """The context and the first character of every piece in it."""
    before = [round(place * len(units)) for place in draft.places]
    texts, at = [draft.opening] if draft.opening else [], []
    done = 0
    for i in range(len(units) + 1):
        while done < len(before) and before[done] == i:
            at.append(len(texts))
            texts.append(draft.pieces[done])
            done += 1
        if i < len(units):
            texts.append(units[i])
    context = draft.join(texts)
    starts, end = [], 0
    for index in at:  # pieces are told apart from filler, and stand in order
        starts.append(context.index(texts[index], end))
        end = starts[-1] + len(texts[index])
    return context, starts


def _exact(
    draft: Draft,
    tokens: int,
    length: Callable[[list[str]], int],
    cost: Callable[[str], int],
    rng: random.Random,
) -> list[str]:
    """Units that give the prompt `tokens` tokens, or as many as fit below.

    Costs of units add up only nearly, where the join numbers them or the tokenizer merges across
    spaces: the whole prompt is counted again after each exchange of its last units.
    """
    pool = [draft.unit(rng) for _ in range(POOL)]
    units: list[str] = []
    best: list[str] = []
    least = total = length([])
    extra = 0  # what joining a unit costs besides the unit
    learned = 0  # by how much the last units missed
    for _ in range(ROUNDS):
        if total == tokens:
            return units
        if total < tokens and len(units) > len(best):
            best = units
        if units:
            extra = round((total - least - sum(map(cost, units))) / len(units))
        rng.shuffle(pool)
        prices = {max(1, cost(unit) + extra): unit for unit in pool}
        kept = list(units)
        excess, replaced = total - tokens, rng.randint(1, REPLACED)
        while kept and (excess > 0 or len(units) - len(kept) < replaced):
            excess -= cost(kept.pop()) + extra
        missing = tokens - length(kept)
        largest = max(prices)
        while missing > (REPLACED + 1) * largest:
            kept.append(draft.unit(rng))
            missing -= cost(kept[-1]) + extra
        units = kept + _sum_of(prices, max(0, missing + learned))
        total = length(units)
        if abs(tokens - total) <= NEARLY:
            learned += tokens - total
    while units and length(units) > tokens:
        units = units[:-1]
    return max(units, best, key=len)


def _sum_of(prices: dict[int, str], wanted: int) -> list[str]:
    """Units, the fewest of them, that cost `wanted` together, or as much as is possible below."""
    reached: dict[int, list[str]] = {0: []}
    fresh = reached
    while fresh and wanted not in reached:
        fresh = {
            total + price: [*units, unit]
            for total, units in fresh.items()
            for price, unit in prices.items()
            if total + price <= wanted and total + price not in reached
        }
        reached |= fresh
    return reached[max(reached)]


def _costs(count_tokens: Callable[[str], int]) -> Callable[[str], int]:
    known: dict[str, int] = {}

    def cost(unit: str) -> int:
        if unit not in known:
            known[unit] = max(1, count_tokens(f" {unit}"))
        return known[unit]

    return cost
