"""Checks a study's specification field by field; every refusal is one sentence naming the field."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from backend.spec import DEVICES, DTYPES, PromptError
from backend.study.entries import (
    DEFAULT_MEASURES,
    DEFAULT_RATIOS,
    FULL,
    MEASURES,
    MOST_PROMPTS,
    NEEDS_FUTURE,
    SCOPES,
    SIZES,
    PolicySpec,
    StudyError,
    TaskSpec,
)
from backend.study.scores import SCORES
from backend.study.sets import MAX_NEW_TOKENS
from backend.study.tasks import default_wording, find
from kvpolicies.choice import canonical, from_text, title
from kvpolicies.errors import PolicyError
from kvpolicies.methods import catalogue

MOST_ENTRIES = 10**9


def checked(values: Any, known: Sequence[str]) -> dict[str, Any]:
    """The fields of a `StudySpec`, defaults included. Raises StudyError."""
    return _Reader(values, known).fields()


def checked_ratios(ratios: Sequence[Any], called: str) -> tuple[float, ...]:
    """Shares evicted, in order, without the full cache's 0. Raises StudyError, which calls the
    field as its reader knows it."""
    for ratio in ratios:
        number = type(ratio) in (int, float) and math.isfinite(ratio)
        if not number or not 0 <= ratio < 1:
            held = f"{ratio:g}" if number else _short(ratio)
            raise StudyError(
                f"{called} holds {held}: give shares evicted, from 0 to below 1, such as "
                "0.5, 0.75, 0.9."
            )
    if ratios and not any(ratios):
        raise StudyError(f"{called} holds 0 only, which is the full cache: add a larger share.")
    return tuple(sorted(float(ratio) for ratio in ratios if ratio))


def checked_budgets(budgets: Sequence[Any], called: str) -> tuple[int, ...]:
    """Entries kept. Raises StudyError like `checked_ratios`."""
    for budget in budgets:
        if type(budget) is not int or not 1 <= budget <= MOST_ENTRIES:
            raise StudyError(
                f"{called} holds {_short(budget)}: give whole numbers from 1 to {MOST_ENTRIES:,}, "
                "such as 64, 128, 256."
            )
    return tuple(budgets)


class _Reader:
    """Checks a specification field by field."""

    def __init__(self, values: Any, known: Sequence[str]) -> None:
        if not isinstance(values, Mapping):
            raise StudyError("A specification is an object of fields such as tasks and policies.")
        self.values = values
        for name in values:
            if name not in known:
                raise StudyError(
                    f"A study has no field '{_short(name)}': it has {', '.join(known)}."
                )

    def fields(self) -> dict[str, Any]:
        model = self.text("model", "demo")
        if not model.strip():
            raise StudyError("model is empty: name one, for example demo.")
        scope = self.values.get("scope")
        ratios, budgets = self.ratios(), self.budgets()
        if ratios and budgets:
            raise StudyError("A study has either ratios or budgets: remove one of them.")
        policies = self.policies(None if scope is None else self.one_of("scope", SCOPES))
        return dict(
            tasks=self.tasks(model),
            policies=policies,
            ratios=() if budgets else ratios or DEFAULT_RATIOS,
            budgets=budgets,
            model=model,
            revision=self.text("revision", "") or None,
            dtype=self.one_of("dtype", DTYPES, "auto"),
            device=self.device(),
            chat_template=self.flag("chat_template"),
            scope=scope,
            measures=self.measures(),
            seed=self.whole("seed", 0, 0, 2**63 - 1),
            title=self.text("title", ""),
        )

    def text(self, name: str, default: str) -> str:
        value = self.values.get(name)
        value = default if value is None else value
        if not isinstance(value, str):
            raise StudyError(f"{name} is {_short(value)}: give a text.")
        return value

    def flag(self, name: str) -> bool:
        value = self.values.get(name, False)
        if not isinstance(value, bool):
            raise StudyError(f"{name} is {_short(value)}: give true or false.")
        return value

    def whole(self, name: str, default: int, low: int, high: int) -> int:
        return _whole(name, self.values.get(name, default), low, high)

    def one_of(self, name: str, choices: Sequence[str], default: str = "") -> str:
        value = self.values.get(name, default)
        if value not in choices:
            raise StudyError(f"{name} is {_short(value)}: use one of {', '.join(choices)}.")
        return str(value)

    def device(self) -> str:
        device = self.text("device", "auto")
        if device.partition(":")[0] not in DEVICES:
            raise StudyError(f"device is {_short(device)}: use one of {', '.join(DEVICES)}.")
        return device

    def several(self, name: str) -> list[Any]:
        values = self.values.get(name)
        if values is None:
            return []
        if not isinstance(values, list | tuple):
            raise StudyError(f"{name} is {_short(values)}: give a list.")
        return list(dict.fromkeys(values)) if all(map(_hashable, values)) else list(values)

    def ratios(self) -> tuple[float, ...]:
        return checked_ratios(self.several("ratios"), "ratios")

    def budgets(self) -> tuple[int, ...]:
        return checked_budgets(self.several("budgets"), "budgets")

    def measures(self) -> tuple[str, ...]:
        given = self.several("measures") or list(DEFAULT_MEASURES)
        for name in given:
            if name not in MEASURES:
                raise StudyError(f"measures holds {_short(name)}: choose {', '.join(MEASURES)}.")
        return tuple(name for name in MEASURES if name in given)

    def entries(self, name: str, fields: Sequence[str]) -> list[tuple[str, Mapping[str, Any]]]:
        """The entries of a list with the words that name each of them in a message."""
        entries = self.values.get(name)
        if not isinstance(entries, list | tuple) or not entries:
            besides = " besides the full cache, which always runs" if name == "policies" else ""
            raise StudyError(f"A study needs {name}{besides}: give a list with at least one entry.")
        named = []
        for number, entry in enumerate(entries, 1):
            where = f"{name}, entry {number}"
            if not isinstance(entry, Mapping):
                raise StudyError(f"{where} is {_short(entry)}: give fields such as {fields[0]}.")
            for key in entry:
                if key not in fields:
                    raise StudyError(
                        f"{where} has no field '{_short(key)}': it has {', '.join(fields)}."
                    )
            if not isinstance(entry.get("options", {}), Mapping):
                raise StudyError(f"{where}: options is {_short(entry['options'])}: give fields.")
            named.append((where, entry))
        return named

    def tasks(self, model: str) -> tuple[TaskSpec, ...]:
        found = []
        for where, entry in self.entries("tasks", tuple(TaskSpec.__dataclass_fields__)):
            try:
                found.append(_task(where, entry, model))
            except PromptError as error:
                raise StudyError(f"{where}: {error}") from error
        return tuple(found)

    def policies(self, scope: str | None) -> tuple[PolicySpec, ...]:
        found: list[PolicySpec] = []
        for where, entry in self.entries("policies", ("policy", "options", "name")):
            try:
                policy = _policy(where, entry, scope)
            except PolicyError as error:
                raise StudyError(f"{where}: {error.sentence}") from error
            if policy.key == FULL:  # the reference is there in any case
                continue
            if policy.name in {other.name for other in found}:
                raise StudyError(f"{where}: '{policy.name}' is there twice: give it another name.")
            found.append(policy)
        return tuple(found)


def _task(where: str, entry: Mapping[str, Any], model: str) -> TaskSpec:
    if bool(entry.get("task")) == bool(entry.get("set")):
        raise StudyError(f"{where} needs either a task or a set.")
    count, options = entry.get("count"), dict(entry.get("options", {}))
    if count is not None:
        count = _whole(f"{where}: count", count, 1, MOST_PROMPTS)
    scoring, length = entry.get("scoring"), entry.get("max_new_tokens")
    if scoring is not None and scoring not in SCORES:
        raise StudyError(f"{where}: scoring is {_short(scoring)}: use one of {', '.join(SCORES)}.")
    if length is not None:
        length = _whole(f"{where}: max_new_tokens", length, 1, MAX_NEW_TOKENS)
    name = entry.get("task") or entry.get("set")
    if not isinstance(name, str):
        raise StudyError(f"{where} is named {_short(name)}: give a text.")
    if entry.get("set"):
        if options:
            raise StudyError(f"{where}: a set has no options, its rows are as they are.")
        return TaskSpec("", name, count, {}, scoring, length)
    if count is None:
        raise StudyError(f"{where} needs a count: how many prompts to draw.")
    if "wording" in find(name).checked({}):
        options.setdefault("wording", default_wording(name, model))
    return TaskSpec(name, "", count, find(name).checked(options), scoring, length)


def _policy(where: str, entry: Mapping[str, Any], scope: str | None) -> PolicySpec:
    text = entry.get("policy")
    if not isinstance(text, str):
        raise StudyError(f"{where} needs a policy, for example snapkv.")
    choice = from_text(text)
    if "masks" in choice:
        raise StudyError(f"{where}: imported masks belong to one run and cannot be studied.")
    given = {**choice["options"], **entry.get("options", {})}
    choice = canonical({**choice, "options": given})
    method = catalogue()[choice["key"]] if "key" in choice else None
    score = method.score if method else choice["score"]
    if score in NEEDS_FUTURE:
        raise StudyError(f"{where}: {text} knows the future, which exists in replay only.")
    if scope is not None and "scope" not in choice["options"] and _once(choice, method):
        choice = canonical({**choice, "options": {**choice["options"], "scope": scope}})
    size = {name: given[name] for name in SIZES if given.get(name) is not None}
    choice = {**choice, "options": dict(sorted({**choice["options"], **size}.items()))}
    sized = not size  # one that is the default fixes the size as well
    if method is not None and method.budget == "none":
        sized = False
    name = entry.get("name") or title(choice)
    if not isinstance(name, str):
        raise StudyError(f"{where}: name is {_short(name)}: give a text.")
    return PolicySpec(choice, name, sized)


def _once(choice: Mapping[str, Any], method: Any) -> bool:
    """Whether the policy compresses at the end of the prompt only, so that it has a scope."""
    schedule = choice.get("schedule") or (method.schedule if method else "after_prefill")
    return bool(schedule == "after_prefill")


def _whole(name: str, value: Any, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise StudyError(
            f"{name} is {_short(value)}: give a whole number from {low:,} to {high:,}."
        )
    return value


def _hashable(value: Any) -> bool:
    return isinstance(value, str | int | float)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:59] + "…"
