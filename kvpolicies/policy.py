"""A policy: a score, an allocation and a schedule with their parameters, checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from kvpolicies.allocations import ALLOCATIONS, Allocation, PerHead
from kvpolicies.errors import PolicyError
from kvpolicies.methods import Method, Preset, catalogue
from kvpolicies.parameters import PARAMETERS, Parameter
from kvpolicies.rules import refuse_illegal
from kvpolicies.schedules import SCHEDULES, Every, Schedule, Sliding
from kvpolicies.scores import SCORES, Score

SHARED = ("budget", "compression_ratio", "scope", "granularity", "group_reduce", "sink", "recent")
SHARED_TOO = ("skip_layers", "pin_prompt", "positions")


@dataclass(frozen=True)
class Policy:
    """A checked combination of score, allocation and schedule; build it with `build`.

    `options` are all its parameters with their values, defaults included, for display and for
    identifying a run.
    """

    key: str
    title: str
    score: Score
    allocation: Allocation
    schedule: Schedule
    options: Mapping[str, Any]
    method: Method | None = None

    @property
    def budget(self) -> int | None:
        return self.options.get("budget")

    @property
    def compression_ratio(self) -> float | None:
        return self.options.get("compression_ratio")

    @property
    def scope(self) -> str:
        return str(self.options["scope"])

    @property
    def granularity(self) -> str:
        return str(self.options["granularity"])

    @property
    def group_reduce(self) -> str:
        return str(self.options["group_reduce"])

    @property
    def skip_layers(self) -> int:
        return int(self.options["skip_layers"])

    @property
    def pin_prompt(self) -> bool:
        return bool(self.options["pin_prompt"])

    @property
    def positions(self) -> str:
        return str(self.options["positions"])

    @property
    def needs(self) -> tuple[str, ...]:
        """What it must be given besides states: queries, lookahead, second_reading, …"""
        needs = self.score.needs
        source = self.options.get("source")
        if source in ("question", "self"):
            needs = ("queries",) + (("question",) if source == "question" else ())
        if isinstance(self.allocation, PerHead) and self.options["head_pattern"] is None:
            needs = (*needs, "queries")
        if self.options.get("value_norm") == "output":
            needs = (*needs, "output_norms")
        return needs

    def sink_of(self, budget: int | None) -> int:
        """Sinks before they are shrunk to the budget."""
        return int(self.options["sink"] or 0)

    def recent_of(self, budget: int | None) -> int:
        """Newest entries that are kept: given, the score's window, or the schedule's interval."""
        recent = self.options["recent"]
        if recent is not None:
            return int(recent)
        if self.key == "h2o" and budget is not None:
            return budget // 2
        if self.score.keeps_window:
            return int(getattr(self.score, "window"))  # noqa: B009
        return self.schedule.interval if isinstance(self.schedule, Every) else 0

    def check_live(self) -> None:
        """Raises `PolicyError` for a policy that no model can run."""
        if "future" in self.needs:
            raise PolicyError(f"{self.title} knows the future: it exists in replay only")

    def __str__(self) -> str:
        if self.budget is not None:
            return f"{self.title}, budget {self.budget}"
        ratio = self.compression_ratio
        return self.title if ratio is None else f"{self.title}, {ratio:.0%} evicted"


def build(
    key: str | None = None,
    *,
    score: str | None = None,
    allocate: str | None = None,
    schedule: str | None = None,
    preset: str | None = None,
    **options: Any,
) -> Policy:
    """A policy by its key in the catalogue, or from three choices; other names are its parameters.

    A key may be combined with another `allocate` or `schedule`. Schedules may be written with
    their number, "every(25)" and "per_partition(128)". Raises `PolicyError` for an unknown name,
    a value out of range or a combination that cannot work, saying which and why.
    """
    method = _method(key)
    if score is not None:
        catalogue()  # a reader's own scores are known once the catalogue was read
    defaults: dict[str, Any] = {}
    if method is not None:
        changed = _preset(method, preset)
        score = score or method.score
        allocate = allocate or changed.allocate or method.allocate
        schedule = schedule or changed.schedule or method.schedule
        defaults = {**method.defaults, **changed.options}
    elif preset is not None:
        raise PolicyError(f"preset={preset!r} belongs to a method of the catalogue; name its key")
    if score is None:
        raise PolicyError(
            "a policy needs a key of the catalogue, or a score, allocate and schedule"
        )
    schedule, number = _split(schedule or "after_prefill")
    options = {**number, **{name: value for name, value in options.items() if value is not None}}
    kinds = (
        _kind(SCORES, score, "score"),
        _kind(ALLOCATIONS, allocate or "uniform", "allocate"),
        _kind(SCHEDULES, schedule, "schedule"),
    )
    if (
        kinds[2] is Every
        and "interval" not in options
        and "interval" not in defaults
        and "window" in {**defaults, **options}
        and "window" not in {f.name for f in fields(kinds[0])}
    ):
        options["interval"] = options.get("window", defaults.get("window"))
    chosen = _chosen(key or score, kinds, defaults, options)
    parts = [
        kind(**{f.name: chosen[f.name] for f in fields(kind) if f.name in chosen}) for kind in kinds
    ]
    policy = Policy(
        key=_own_key(method, score, allocate, schedule),
        title=_title(method, *kinds),
        score=parts[0],
        allocation=parts[1],
        schedule=parts[2],
        options=chosen,
        method=method,
    )
    refuse_illegal(policy)
    return policy


@dataclass(frozen=True)
class MethodParameter:
    """A parameter as one method has it: its default, or the formula it follows from the budget
    by, and the value in the method's paper. What forms, the command line and the docs show."""

    parameter: Parameter
    default: Any
    formula: str | None
    paper: Any


def parameters_of(method: Method) -> tuple[MethodParameter, ...]:
    """The parameters that change what a method does, budget first."""
    kinds: tuple[Any, ...] = (
        SCORES[method.score],
        ALLOCATIONS[method.allocate],
        SCHEDULES[method.schedule],
    )
    own = {f.name: f.default for kind in kinds for f in fields(kind)}
    names = [] if method.budget == "none" else ["budget", "compression_ratio"]
    names += [name for name in method.defaults if name not in ("pin_prompt",)]
    names += [name for name in own if not (name == "interval" and "window" in method.defaults)]
    if kinds[0].needs != ("states",) and "agg_group" not in own:
        names.append("group_reduce")
    if method.key != "full":
        names.append("granularity")
        if method.schedule == "after_prefill":
            names.append("scope")
    paper = method.presets["paper"].options if "paper" in method.presets else {}
    listed = []
    follow = [name for name in ("recent",) if name in method.formulas and kinds[2] is not Sliding]
    for name in dict.fromkeys([*names, *follow]):
        shared = None if name in method.formulas else PARAMETERS[name].default
        default = method.defaults.get(name, own.get(name, shared))
        listed.append(
            MethodParameter(
                PARAMETERS[name],
                default,
                method.formulas.get(name),
                paper.get(name, method.paper_values.get(name, default)),
            )
        )
    return tuple(listed)


def _method(key: str | None) -> Method | None:
    if key is None:
        return None
    methods = catalogue()
    if key not in methods:
        raise PolicyError(f"there is no policy {key!r}; the catalogue has {', '.join(methods)}")
    return methods[key]


def _preset(method: Method, preset: str | None) -> Preset:
    if preset is not None and preset in method.presets:
        return method.presets[preset]
    if preset in (None, "paper", "released", "kvpress"):
        return Preset({}, "")  # nothing differs there
    raise PolicyError(f"preset must be paper, released or kvpress, not {preset!r}")


def _split(schedule: str) -> tuple[str, dict[str, Any]]:
    """("every", {"interval": 25}) from "every(25)"."""
    match = re.fullmatch(r"(every|per_partition)\((\d+)\)", schedule)
    if not match:
        return schedule, {}
    return match[1], {"interval" if match[1] == "every" else "lag": int(match[2])}


def _kind(table: Mapping[str, type], name: str, what: str) -> type:
    if name not in table:
        raise PolicyError(f"there is no {what} {name!r}; choose one of {', '.join(table)}")
    return table[name]


def _own_key(method: Method | None, score: str, allocate: str | None, schedule: str) -> str:
    same = method is not None and (method.score, method.allocate, method.schedule) == (
        score,
        allocate,
        schedule,
    )
    return method.key if method is not None and same else "custom"


def _title(method: Method | None, score: Any, allocation: Any, schedule: Any) -> str:
    if method is not None and method.score == score.name:
        return method.named(allocation.name, schedule.name)
    parts = (score.name, allocation.name, schedule.name)
    return " × ".join(part.replace("_", " ") for part in parts)


def _chosen(
    name: str,
    kinds: tuple[type, ...],
    defaults: Mapping[str, Any],
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """All parameters with values: given, the row's, the part's own, or the parameter's default."""
    own = {f.name: f.default for kind in reversed(kinds) for f in fields(kind)}
    known = [*SHARED, *SHARED_TOO, *own]
    if kinds[2] is Every and "window" not in own:
        known.append("window")  # LazyEviction's W: the interval under its own name
    for option in options:
        if option not in known:
            raise PolicyError(
                f"{name} has no parameter {option!r}; it takes {', '.join(sorted(set(known)))}"
            )
        if kinds[2] is Sliding and option in ("sink", "recent"):
            raise PolicyError(
                f"{name} derives {option} from its budget (S = B/4, R = the rest); leave it out"
            )
    shared = {option: PARAMETERS[option].default for option in (*SHARED, *SHARED_TOO)}
    shared["recent"] = None
    merged = {**shared, **own, **defaults, **options}
    if merged["compression_ratio"] is not None and merged["budget"] is not None:
        raise PolicyError(
            f"{name} takes a budget or a compression_ratio, not both "
            f"(budget={merged['budget']}, compression_ratio={merged['compression_ratio']})"
        )
    for context_only in ("reconstruction", "context_attention"):
        if kinds[0].name == context_only and "scope" not in options:  # type: ignore[attr-defined]
            merged["scope"] = "context"
    return {
        option: PARAMETERS[option].check(value) if option in PARAMETERS else value
        for option, value in merged.items()
    }
