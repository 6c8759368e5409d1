"""A policy as a reader chose it: plain JSON with one form per policy, and a text for links.

A choice is one of

    {"key": "snapkv", "preset": "kvpress", "options": {"budget": 256}}  # a row of the catalogue
    {"score": "window_attention", "allocate": "pyramid", "schedule": "after_prefill",
     "options": {"budget": 256}}
    {"masks": "<hash of imported keep-masks>"}

A row may also name another `allocate` or `schedule`. Nothing here imports torch but `policy_of`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kvpolicies.errors import PolicyError
from kvpolicies.methods import METHODS, Method, Preset, catalogue
from kvpolicies.parameters import PARAMETERS

if TYPE_CHECKING:
    from kvpolicies.policy import Policy

Choice = Mapping[str, Any]

PRESETS = ("paper", "released", "kvpress")
WINDOW_SCORES = ("window_attention", "lookahead_attention", "redundancy_attention")
CONTEXT_SCORES = ("reconstruction", "context_attention")  # rank the context unless told otherwise
# Defaults of a score or schedule where `PARAMETERS` has another; the dataclasses that state them
# need torch. A test holds both together.
OWN_DEFAULTS: dict[tuple[str, str], Any] = {
    ("lookahead_attention", "window"): 0,
    ("timestamp", "alpha"): 1e-4,
    ("page_bound", "skip_layers"): 2,
    ("block_representative", "sink"): 128,
    ("block_representative", "recent"): 4096,
    ("block_representative", "page"): 128,
    ("expected_attention", "sink"): 4,
    ("redundancy_attention", "window"): 8,
    ("every", "interval"): 25,
}
_FIRST = ("allocate", "schedule", "preset", "budget", "compression_ratio")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BARE = re.compile(r"[A-Za-z0-9_./-]+")


def policy_of(choice: Choice) -> Policy:
    """The policy of a choice. Raises `PolicyError` for what cannot be built, imported masks too."""
    from kvpolicies.policy import build

    form = canonical(choice)
    if "masks" in form:
        raise PolicyError("imported keep-masks are no policy: they can be compared, not run")
    options = form.pop("options")
    return build(form.pop("key", None), **form, **options)


def passes_of(choice: Choice, has_rotary: bool = False) -> list[tuple[str, dict[str, Any]]]:
    """Recordings beside a capture that a replay needs: the kinds of derived files and their specs.

    `lookahead` with {"policy": canonical choice of the cache it ran on, "steps": n},
    `second_reading` with {}, and `model_facts` with {} for output norms and, unless the capture
    itself `has_rotary`, rotary embeddings. Raises `PolicyError` as `policy_of` does.
    """
    if "masks" in choice:
        return []
    policy = policy_of(choice)
    passes: list[tuple[str, dict[str, Any]]] = []
    if "lookahead" in policy.needs:
        options = policy.options
        small = {
            "budget": options["lookahead_budget"] or policy.budget,
            "compression_ratio": policy.compression_ratio,
            "granularity": policy.granularity,
            "scope": policy.scope,
        }
        if small["budget"]:
            del small["compression_ratio"]
        drafting = canonical({"key": options["lookahead_policy"], "options": small})
        passes.append(("lookahead", {"policy": drafting, "steps": options["lookahead_steps"]}))
    if "second_reading" in policy.needs:
        passes.append(("second_reading", {}))
    if "output_norms" in policy.needs or ("rotary" in policy.needs and not has_rotary):
        passes.append(("model_facts", {}))
    return passes


def canonical(choice: Choice) -> dict[str, Any]:
    """The one form of a choice: presets written out, defaults left out, keys in order.

    Raises `PolicyError` for a name or value that does not exist; combinations are checked by
    `policy_of`.
    """
    if not isinstance(choice, Mapping):
        raise PolicyError(f"a policy is chosen by a JSON object, not {choice!r}")
    if "masks" in choice:
        _only(choice, ("masks",))
        return {"masks": _name(choice, "masks")}
    _only(choice, ("key", "score", "allocate", "schedule", "preset", "options"))
    given = {name: choice[name] for name in choice if choice[name] is not None}
    method = _method(given)
    parts: dict[str, str] = {
        name: _name(given, name) for name in ("allocate", "schedule") if name in given
    }
    schedule, number = _split(parts.get("schedule"))
    options = {**number, **_options(given.get("options", {}))}
    if schedule is not None:
        parts["schedule"] = schedule
    if method is None:
        parts = {"allocate": "uniform", "schedule": "after_prefill", **parts}
        parts["score"] = _name(given, "score")
    else:
        preset = _preset(method, given.get("preset"))
        options, parts = {**preset.options, **options}, {**preset.parts, **parts}
        own: dict[str, str] = {"allocate": method.allocate, "schedule": method.schedule}
        parts = {name: part for name, part in parts.items() if part != own[name]}
        parts["key"] = method.key
    every = parts.get("schedule", method.schedule if method else "") == "every"
    if every and parts.get("score", method.score if method else "") not in WINDOW_SCORES:
        _name_interval(method, options)
    kept: dict[str, Any] = {
        name: value
        for name, value in sorted(options.items())
        if value != _default(name, method, parts)
    }
    return dict(sorted({**parts, "options": kept}.items()))


def to_text(choice: Choice) -> str:
    """A short readable text, `snapkv(budget=256,window=64)`; `from_text` gives the choice back."""
    if "masks" in choice:
        return f"masks({choice['masks']})"
    listed = dict(choice.get("options") or {})
    if "key" in choice:
        head = str(choice["key"])
        names: tuple[str, ...] = ("allocate", "schedule", "preset")
        listed |= {name: choice[name] for name in names if choice.get(name) is not None}
    else:
        parts = (choice.get("score"), choice.get("allocate"), choice.get("schedule"))
        head = "*".join(
            str(part or usual)
            for part, usual in zip(parts, ("", "uniform", "after_prefill"), strict=True)
        )
    order = sorted(listed, key=lambda name: (name not in _FIRST, name))
    return f"{head}({','.join(f'{name}={_value_text(listed[name])}' for name in order)})"


def from_text(text: str) -> dict[str, Any]:
    """The choice that `to_text` wrote. Raises `PolicyError` where the text is none."""
    match = re.fullmatch(
        r"\s*([A-Za-z0-9_]+(?:\*[A-Za-z0-9_]+\*[A-Za-z0-9_]+)?)\s*(?:\((.*)\))?\s*", text, re.DOTALL
    )
    if match is None:
        raise _unreadable(text)
    head, inside = match[1], (match[2] or "").strip()
    if head == "masks":
        if not re.fullmatch(r"[A-Za-z0-9_-]+", inside):
            raise _unreadable(text)
        return {"masks": inside}
    options = _read_options(inside, text)
    if "*" in head:
        score, allocate, schedule = head.split("*")
        return {"score": score, "allocate": allocate, "schedule": schedule, "options": options}
    named: dict[str, Any] = {
        name: options.pop(name) for name in ("allocate", "schedule", "preset") if name in options
    }
    return {"key": head, **named, "options": options}


def title(choice: Choice) -> str:
    """What to call it: the method, its budget, and every option that is not the default."""
    form = canonical(choice)
    if "masks" in form:
        return f"Imported masks {form['masks'][:8]}"
    options = form["options"]
    words = [_method_title(form)]
    if "budget" in options:
        words.append(f"budget {options.pop('budget'):,}")
    if "compression_ratio" in options:
        words.append(f"{100 * options.pop('compression_ratio'):.3g}% evicted")
    words += [f"{name.replace('_', ' ')} {_value_text(value)}" for name, value in options.items()]
    return ", ".join(words)


def _method_title(form: Mapping[str, Any]) -> str:
    if "key" not in form:
        parts = (str(form[part]).replace("_", " ") for part in ("score", "allocate", "schedule"))
        return " × ".join(parts)
    method = catalogue()[form["key"]]
    return method.named(
        form.get("allocate", method.allocate), form.get("schedule", method.schedule)
    )


def _method(given: Mapping[str, Any]) -> Method | None:
    if ("key" in given) == ("score" in given):
        raise PolicyError(
            "a policy is chosen by a key of the catalogue, or by a score, allocate and schedule"
        )
    if "key" not in given:
        if "preset" in given:
            raise PolicyError("a preset belongs to a method of the catalogue; name its key")
        return None
    key, methods = _name(given, "key"), catalogue()
    if key not in methods:
        raise PolicyError(f"there is no policy {key!r}; the catalogue has {', '.join(methods)}")
    return methods[key]


def _only(choice: Choice, names: tuple[str, ...]) -> None:
    for name in choice:
        if name not in names:
            raise PolicyError(f"a chosen policy has no field {name!r}; it has {', '.join(names)}")


def _name(given: Mapping[str, Any], field: str) -> str:
    value = given[field]
    if not isinstance(value, str) or not value:
        raise PolicyError(f"the {field} of a chosen policy must be a name, not {value!r}")
    return value


def _split(schedule: str | None) -> tuple[str | None, dict[str, Any]]:
    """("every", {"interval": 25}) from "every(25)"."""
    match = re.fullmatch(r"(every|per_partition)\((\d+)\)", schedule or "")
    if not match:
        return schedule, {}
    return match[1], {"interval" if match[1] == "every" else "lag": int(match[2])}


def _options(options: Any) -> dict[str, Any]:
    if not isinstance(options, Mapping):
        raise PolicyError(f"the options of a chosen policy must be a JSON object, not {options!r}")
    for name in options:
        if name not in PARAMETERS:
            raise PolicyError(
                f"there is no parameter {name!r}; choose from {', '.join(PARAMETERS)}"
            )
    checked = {name: PARAMETERS[name].check(value) for name, value in options.items()}
    return {name: value for name, value in checked.items() if value is not None}


def _name_interval(method: Method | None, options: dict[str, Any]) -> None:
    """`window` is another name for the schedule's interval where the score has no window."""
    if method is not None and "window" in method.defaults:
        return
    window = options.pop("window", None)
    if window is not None:
        options.setdefault("interval", window)


def _preset(method: Method, preset: Any) -> Preset:
    if preset is not None and preset not in PRESETS:
        raise PolicyError(
            f"preset must be {', '.join(PRESETS[:2])} or {PRESETS[2]}, not {preset!r}"
        )
    return method.presets[preset] if preset in method.presets else Preset({}, "")


def _default(name: str, method: Method | None, parts: Mapping[str, Any]) -> Any:
    """What `build` takes for an option that is not given."""
    score = parts["score"] if method is None else method.score
    if name == "scope" and score in CONTEXT_SCORES:
        return "context"
    if method is not None and name in method.defaults:
        return method.defaults[name]
    if method is not None and method not in METHODS:  # a reader's own: its file is loaded already
        from kvpolicies.scores import SCORES

        own = SCORES[score].__dataclass_fields__  # type: ignore[attr-defined]
        if name in own:
            return own[name].default
    schedule = parts.get("schedule") or (method.schedule if method is not None else "")
    usual = PARAMETERS[name].default if name != "recent" else None
    return OWN_DEFAULTS.get((score, name), OWN_DEFAULTS.get((schedule, name), usual))


def _value_text(value: Any) -> str:
    if isinstance(value, str):
        plain = _BARE.fullmatch(value) and _value(value) == value
        return value if plain else json.dumps(value, ensure_ascii=False)
    return json.dumps(value, separators=(",", ":"))


def _value(word: str) -> Any:
    """A number, true, false, list or quoted text; anything else is the word itself."""
    try:
        return json.loads(word, parse_constant=str)
    except ValueError:
        return word


def _read_options(inside: str, text: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    decoder = json.JSONDecoder(parse_constant=str)
    at = 0
    while at < len(inside):
        name = _WORD.match(inside, at)
        if name is None or inside[name.end() : name.end() + 1] != "=" or name[0] in options:
            raise _unreadable(text)
        start = name.end() + 1
        if inside[start : start + 1] in ('"', "["):
            try:
                options[name[0]], at = decoder.raw_decode(inside, start)
            except ValueError as error:
                raise _unreadable(text) from error
        else:
            at = inside.find(",", start)
            at = len(inside) if at < 0 else at
            word = inside[start:at].strip()
            if not word:
                raise _unreadable(text)
            options[name[0]] = _value(word)
        if at < len(inside):
            if inside[at] != "," or at + 1 == len(inside):
                raise _unreadable(text)
            at += 1
    return options


def _unreadable(text: str) -> PolicyError:
    shown = text if len(text) <= 60 else text[:59] + "…"
    return PolicyError(f"{shown!r} is no policy; write for example snapkv(budget=256,window=32)")
