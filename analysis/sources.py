"""Where a figure's numbers come from, in full: which files, made with what, under which policy.

A figure names its runs by id and its policies by what was chosen; a paper has to say more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from analysis.figure import Figure
from cache_store.errors import KVScopeError
from cache_store.hashing import file_sha256
from cache_store.reader import Capture
from kvpolicies import PolicyError


def with_sources(figure: Figure, opened: Callable[[str], Capture]) -> Figure:
    """The figure with two further entries of its provenance.

    captures: of each run its id, the hash of its file, model, settings and library versions;
    parameters: each policy with all its parameters, defaults included. opened: the capture of a
    run id; a run that is gone keeps its id only.
    """
    told = dict(figure.provenance)
    told["captures"] = [_capture(run_id, opened) for run_id in run_ids(figure)]
    told["parameters"] = {text: options for text, options in map(_policy, _choices(told))}
    return dataclasses.replace(figure, provenance=told)


def run_ids(figure: Figure) -> list[str]:
    """The runs that a figure shows, each once."""
    told = figure.provenance
    named = [told.get("run"), *told.get("runs", ())]
    return list(dict.fromkeys(str(run_id) for run_id in named if run_id))


def _capture(run_id: str, opened: Callable[[str], Capture]) -> dict[str, Any]:
    try:
        capture = opened(run_id)
        info, sha256 = capture.info, file_sha256(capture.path)
    except KVScopeError:
        return {"id": run_id}
    made = info.created_at
    return {
        "id": run_id,
        "file": capture.path.name,
        "file_sha256": sha256,
        "created_at": made.isoformat() if made else None,
        "model": info.model_id,
        "model_revision": info.model_revision,
        "architecture": info.architecture,
        "dtype": info.dtype,
        "device": info.device,
        "prompt_length": info.prompt_length,
        "response_length": info.response_length,
        "settings": dict(info.settings),
        "seed": info.seed,
        "schema_version": info.schema_version,
        "versions": dict(info.versions),
    }


def _choices(value: Any) -> Iterator[Mapping[str, Any]]:
    """Every policy choice (see `kvpolicies.choice`) within some provenance."""
    if isinstance(value, Mapping):
        if value.keys() == {"masks"} or ("options" in value and {"key", "score"} & value.keys()):
            yield value
        else:
            for entry in value.values():
                yield from _choices(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _choices(entry)


def _policy(choice: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """A policy as text, and all its parameters; none where it cannot be built any more."""
    from kvpolicies.choice import policy_of, to_text

    try:
        policy = policy_of(choice)
    except PolicyError:
        return to_text(choice), {}
    recent = policy.recent_of(policy.budget)  # what it follows from where it was left open
    return to_text(choice), dict(sorted({**policy.options, "recent": recent}.items()))
