"""What a study computes: a small TOML or JSON specification, checked without torch.

title = "Passkeys at two sizes"
model = "demo"
seed = 0
ratios = [0.5, 0.75, 0.9]          # share evicted; or budgets = [64, 128]
measures = ["score", "agreement", "nll", "kl"]

[[tasks]]
task = "passkey"
count = 4
options = { length = 1000, digits = 7 }

[[policies]]
policy = "snapkv"
options = { window = 32 }
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.study.checking import checked
from backend.study.entries import DEFAULT_MEASURES, Cell, PolicySpec, StudyError, TaskSpec
from backend.study.tasks import prompts
from kvpolicies.choice import title, to_text

__all__ = ["Cell", "PolicySpec", "StudyError", "StudySpec", "TaskSpec", "load_spec"]


@dataclass(frozen=True)
class StudySpec:
    """A checked specification; `from_toml`, `from_json` and `from_dict` make one.

    Raises StudyError, one sentence naming the line or the field.
    """

    tasks: tuple[TaskSpec, ...]
    policies: tuple[PolicySpec, ...]
    ratios: tuple[float, ...] = ()
    budgets: tuple[int, ...] = ()
    model: str = "demo"
    revision: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    chat_template: bool = False
    scope: str | None = None  # None: each policy's own
    measures: tuple[str, ...] = DEFAULT_MEASURES
    seed: int = 0
    title: str = ""

    @classmethod
    def from_toml(cls, text: str) -> StudySpec:
        try:
            values = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise StudyError(f"The specification is not TOML: {error}.") from error
        return cls.from_dict(values)

    @classmethod
    def from_json(cls, text: str) -> StudySpec:
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            where = f"line {error.lineno}, column {error.colno}"
            raise StudyError(f"The specification is not JSON: {error.msg} ({where}).") from error
        except RecursionError as error:
            raise StudyError("The specification is not JSON: it is nested too deeply.") from error
        return cls.from_dict(values)

    @classmethod
    def from_dict(cls, values: Any) -> StudySpec:
        return cls(**checked(values, tuple(cls.__dataclass_fields__)))

    def to_dict(self) -> dict[str, Any]:
        """JSON values; `from_dict` gives the same specification back."""
        whole: dict[str, Any] = {
            "title": self.title,
            "model": self.model,
            "revision": self.revision,
            "dtype": self.dtype,
            "device": self.device,
            "chat_template": self.chat_template,
            "seed": self.seed,
            "scope": self.scope,
            "measures": list(self.measures),
        }
        if self.budgets:
            whole["budgets"] = list(self.budgets)
        else:
            whole["ratios"] = list(self.ratios)
        whole["tasks"] = [_task_dict(task) for task in self.tasks]
        whole["policies"] = [_policy_dict(policy) for policy in self.policies]
        return {name: value for name, value in whole.items() if value is not None}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), ensure_ascii=False, indent=1)

    def to_toml(self) -> str:
        values = self.to_dict()
        tables = {name: values.pop(name) for name in ("tasks", "policies")}
        lines = [f"{name} = {_toml(value)}" for name, value in values.items()]
        for name, entries in tables.items():
            for entry in entries:
                lines += ["", f"[[{name}]]"]
                lines += [f"{key} = {_toml(value)}" for key, value in entry.items()]
        return "\n".join(lines) + "\n"

    def cells(self) -> list[Cell]:
        """What is run on every prompt: the full cache first, then each policy at each size."""
        cells = [Cell()]
        for policy in self.policies:
            if not policy.sized:
                cells.append(Cell(policy))
            elif self.budgets:
                cells += [Cell(policy, budget=budget) for budget in self.budgets]
            else:
                cells += [Cell(policy, ratio=ratio) for ratio in self.ratios]
        return cells

    def examples(self, set_sizes: Mapping[str, int] | None = None) -> int:
        """How many prompts; `set_sizes` are the rows of the uploaded sets by name."""
        total = 0
        for task in self.tasks:
            if task.set:
                rows = (set_sizes or {}).get(task.set, task.count or 0)
                total += rows if task.count is None else min(rows, task.count)
            else:
                total += prompts(task.task, task.count or 0, task.options)
        return total

    @property
    def sets(self) -> list[str]:
        """Names of the uploaded sets."""
        return list(dict.fromkeys(task.set for task in self.tasks if task.set))

    def id(self, revision: str, sets: Mapping[str, bytes] | None = None) -> str:
        """The hash of what is computed: the same study on the same weights and sets has the same
        id, whatever its title."""
        held = {name: hashlib.sha256(data).hexdigest() for name, data in (sets or {}).items()}
        whole = {**self.to_dict(), "revision": revision, "title": "", "held": held}
        text = json.dumps(whole, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def load_spec(path: Path) -> tuple[StudySpec, dict[str, bytes]]:
    """A specification file and the sets it names, which lie beside it. Raises StudyError."""
    text = _read(path, "specification").decode("utf-8", "replace")
    read = StudySpec.from_json if path.suffix.lower() == ".json" else StudySpec.from_toml
    spec = read(text)
    return spec, {name: _read(path.parent / name, "set") for name in spec.sets}


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StudyError(f"The {what} {path} cannot be read: {error.strerror}.") from error


def _task_dict(task: TaskSpec) -> dict[str, Any]:
    kept = {name: value for name, value in vars(task).items() if value not in ("", None)}
    if not task.options:
        del kept["options"]
    return kept | ({"options": dict(task.options)} if task.options else {})


def _policy_dict(policy: PolicySpec) -> dict[str, Any]:
    head = to_text({**policy.choice, "options": {}}).removesuffix("()")
    entry: dict[str, Any] = {"policy": head}
    if policy.choice["options"]:
        entry["options"] = dict(policy.choice["options"])
    if policy.name != title(policy.choice):
        entry["name"] = policy.name
    return entry


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        pairs = (f"{_toml_key(key)} = {_toml(item)}" for key, item in value.items())
        return "{ " + ", ".join(pairs) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key)
