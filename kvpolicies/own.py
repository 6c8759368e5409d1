"""A reader's own methods: one Python file each, in the folder named by KVSCOPE_POLICIES.

A file is trusted code. It defines a function of a `View` and of its parameters, each with a
default, and may say more about itself:

    \"\"\"Keeps entries whose values are large.\"\"\"

    title = "Value norm"
    meanings = {"power": "exponent of the norm"}
    schedule = "every_step"  # default after_prefill; allocate (default uniform) likewise


    def score(view, power: float = 1.0):
        return view.entries.values.float().norm(dim=-1) ** power  # (kv_heads, n)

The file's name is the method's key. `KVSCOPE_HOSTED` switches all of them off.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import field, make_dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from kvpolicies.errors import PolicyError
from kvpolicies.methods import METHODS, Method
from kvpolicies.parameters import PARAMETERS, Parameter
from kvpolicies.scores.base import SCORES, Score
from kvpolicies.view import View

KINDS = {bool: "bool", int: "int", float: "float", str: "text"}


def own_methods(folder: str) -> dict[str, Method]:
    """The methods of a folder by key; read again when a file there changes."""
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise PolicyError(f"KVSCOPE_POLICIES names {folder!r}, which is not a folder")
    files = sorted(file for file in path.glob("*.py") if not file.name.startswith("_"))
    stamps = tuple((str(file), file.stat().st_mtime_ns) for file in files)
    return {method.key: method for method in _load_all(stamps)}


@lru_cache(maxsize=4)
def _load_all(stamps: tuple[tuple[str, int], ...]) -> tuple[Method, ...]:
    return tuple(_load(Path(file)) for file, _ in stamps)


def _load(file: Path) -> Method:
    key = file.stem
    if key in {method.key for method in METHODS} or not key.isidentifier():
        raise PolicyError(
            f"{file} cannot be a method named {key!r}: rename the file to a name of letters, "
            "digits and underscores that the catalogue does not have yet"
        )
    module = _import(file)
    function = getattr(module, "score", None)
    if not callable(function):
        raise PolicyError(f"{file} has no function score(view, ...), so it is not a method")
    parameters = _parameters(file, function, getattr(module, "meanings", {}))
    SCORES[key] = _score_class(key, file, function, parameters)
    idea = (inspect.getdoc(module) or "A method of your own.").splitlines()[0]
    return Method(
        key,
        str(getattr(module, "title", key)),
        idea,
        str(getattr(module, "paper", "")),
        key,
        str(getattr(module, "allocate", "uniform")),
        str(getattr(module, "schedule", "after_prefill")),
        note=f"Your own method, from {file}.",
    )


def _import(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"kvscope_own_{file.stem}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise PolicyError(f"{file} cannot be read as a method: {error}") from error
    return module


def _parameters(
    file: Path, function: Callable[..., Any], meanings: dict[str, str]
) -> dict[str, Any]:
    """Names and defaults of the function's parameters; new names become known parameters."""
    found: dict[str, Any] = {}
    for name, parameter in list(inspect.signature(function).parameters.items())[1:]:
        if parameter.default is inspect.Parameter.empty or type(parameter.default) not in KINDS:
            raise PolicyError(
                f"{file}: parameter {name!r} of score needs a default that is a number, a text or "
                "true or false"
            )
        found[name] = parameter.default
        if name not in PARAMETERS or PARAMETERS[name].symbol == "own":
            PARAMETERS[name] = Parameter(
                name,
                "own",
                meanings.get(name, "a parameter of your own method"),
                KINDS[type(parameter.default)],
                parameter.default,
            )
    return found


def _score_class(
    key: str, file: Path, function: Callable[..., Any], parameters: dict[str, Any]
) -> type[Score]:
    def score(self: Any, view: View) -> Tensor:
        result = function(view, **{name: getattr(self, name) for name in parameters})
        shape = (view.heads, len(view.entries))
        if not isinstance(result, Tensor) or tuple(result.shape) != shape:
            got = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
            raise PolicyError(
                f"{file}: score must return a tensor of shape (KV heads, entries), here {shape}, "
                f"not {got}"
            )
        return result.to(torch.float32)

    kind = make_dataclass(
        f"Own_{key}",
        [(name, type(default), field(default=default)) for name, default in parameters.items()],
        bases=(Score,),
        namespace={
            "name": key,
            "idea": "a reader's own score",
            "needs": ("queries",),
            "history": int(parameters.get("window", 32)),
            "score": score,
        },
        frozen=True,
    )
    return kind
