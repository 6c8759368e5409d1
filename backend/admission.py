"""Before a run starts: how long it will take, how much memory and disk, and whether it fits.

Nothing here imports torch; the estimate must be there as soon as the form is.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from backend.costs import (
    HALF,
    Facts,
    Observed,
    file_parts,
    memory_parts,
    pass_bytes,
    pass_memory,
    pass_seconds,
    time_parts,
)
from backend.spec import CaptureSpec
from cache_store.errors import KVScopeError, StoreError
from cache_store.library import Library

__all__ = [
    "AdmissionError",
    "Estimate",
    "Observed",
    "available_memory",
    "earlier_captures",
    "estimate",
    "free_disk",
]

MAX_FILE_BYTES = 4_000_000_000  # KVSCOPE_MAX_FILE_BYTES
EARLIER = 4  # captures that tell the speed of a model
PASSES = "further passes"
DISK_RESERVE = 200_000_000  # left free: a full disk harms more than this run


class AdmissionError(KVScopeError):
    """A run does not fit this machine; the message is the sum and the way out."""


@dataclass(frozen=True)
class Estimate:
    """What a run will need. Sizes in bytes; the parts of each sum by name, in order.

    `refusals` are sentences that say why it cannot run (none: it can); `advice` sentences that
    do not stop it. `suggested_layers` are the layers whose attention rows would keep the file
    below the limit, None when all asked for do.
    """

    seconds: float
    memory_bytes: int
    file_bytes: int
    available_memory: int
    free_disk: int
    time_parts: dict[str, float]
    memory_parts: dict[str, int]
    file_parts: dict[str, int]
    refusals: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    suggested_layers: list[int] | None = None

    def check(self) -> None:
        """Raises AdmissionError with the first reason why the run cannot start."""
        if self.refusals:
            raise AdmissionError(self.refusals[0])


def estimate(
    facts: Facts,
    prompt_tokens: int,
    spec: CaptureSpec,
    home: Path | str,
    *,
    observed: Sequence[Observed] = (),
    max_file_bytes: int | None = None,
) -> Estimate:
    """Seconds, memory and file size of `spec` on a prompt of so many tokens, and what is free.

    `observed` captures of the same model correct the speed; `max_file_bytes` is by default
    KVSCOPE_MAX_FILE_BYTES, or 4 GB. Raises AdmissionError only for a limit that is no number;
    what does not fit is in `refusals`.
    """
    limit = _file_limit() if max_file_bytes is None else max_file_bytes
    memory, disk = available_memory(), free_disk(Path(home))
    width = _dtype_bytes(facts, spec.dtype, memory)
    file = file_parts(facts, prompt_tokens, spec)
    size = sum(file.values())
    need = memory_parts(facts, prompt_tokens, spec.max_new_tokens, width, size)
    seconds = time_parts(facts, prompt_tokens, spec.max_new_tokens, width, size, observed)
    if spec.passes:
        need[PASSES] = pass_memory(facts, prompt_tokens, spec, width)
        prefill, decode = seconds["read the prompt"], seconds["write the answer"]
        seconds[PASSES] = pass_seconds(spec, prefill, decode)
        file[PASSES] = pass_bytes(facts, prompt_tokens, spec)
        size += file[PASSES]
    layers = _layers_below(facts, prompt_tokens, spec, min(limit, disk - DISK_RESERVE))
    refusals = _refusals(facts, prompt_tokens, spec, need, memory, file, disk, layers)
    advice = _pass_advice(facts, prompt_tokens, spec)
    if size > limit and layers is not None:
        smaller = _file_bytes(facts, prompt_tokens, _with_layers(spec, layers))
        advice.append(
            f"The file would take {_size(size)} ({_sum(file)}), above the limit of "
            f"{_size(limit)}: with the attention rows of {_layer_words(layers)} only it takes "
            f"{_size(smaller)}, and the other rows are recomputed when they are looked at."
        )
    return Estimate(
        sum(seconds.values()),
        sum(need.values()),
        size,
        memory,
        disk,
        seconds,
        need,
        file,
        tuple(refusals),
        tuple(advice),
        layers,
    )


def earlier_captures(library: Library, model_id: str) -> list[Observed]:
    """How long the newest captures of this model in the library took, for `estimate`."""
    runs = library.runs()
    runs = runs[runs["error"].isna() & (runs["model_id"] == model_id)].head(EARLIER)
    infos = []
    for run_id in runs["id"]:
        with contextlib.suppress(StoreError):  # deleted or damaged in the meantime
            infos.append(library.open(run_id).info)
    return [Observed.of(info.prompt_length, info.response_length, info.timings) for info in infos]


def available_memory() -> int:
    """Bytes a run may take: what is free, and what this app's own idle workers hold, because
    the next run replaces it; at most what their nanny allows (KVSCOPE_WORKER_MEMORY)."""
    machine = psutil.virtual_memory()
    held = 0
    for process in psutil.Process().children(recursive=True):
        try:
            held += process.memory_info().rss
        except psutil.Error:
            continue
    limit = int(machine.total * 0.8)
    text = os.environ.get("KVSCOPE_WORKER_MEMORY", "")
    if text:
        from backend.jobs.worker import parse_memory

        try:
            limit = parse_memory(text) or machine.total
        except ValueError as error:
            raise AdmissionError(
                f"KVSCOPE_WORKER_MEMORY is '{text}': give a size such as 12GB, or 0 for no limit."
            ) from error
    return min(machine.available + held, limit)


def free_disk(home: Path) -> int:
    """Bytes free where the runs are kept; the folder need not be there yet."""
    folder = home.resolve()
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _refusals(
    facts: Facts,
    prompt_tokens: int,
    spec: CaptureSpec,
    need: dict[str, int],
    memory: int,
    file: dict[str, int],
    disk: int,
    layers: list[int] | None,
) -> list[str]:
    refusals = []
    length = prompt_tokens + spec.max_new_tokens
    if facts.max_positions is not None and length > facts.max_positions:
        refusals.append(
            f"{prompt_tokens:,} prompt tokens and {spec.max_new_tokens:,} new ones are "
            f"{length:,}, more than the model's context of {facts.max_positions:,}: shorten the "
            "prompt or ask for fewer new tokens."
        )
    wrong = [layer for layer in spec.stored_layers or [] if layer >= facts.layers]
    if wrong:
        refusals.append(
            f"Layer {wrong[0]} is not there: the model has layers 0 to {facts.layers - 1}."
        )
    if sum(need.values()) > memory:
        smaller = (
            "" if _dtype_bytes(facts, spec.dtype, memory) == HALF else "choose dtype bfloat16, "
        )
        refusals.append(
            f"The run needs about {_size(sum(need.values()))} of memory ({_sum(need)}), "
            f"{_size(memory)} are there for it: use fewer tokens, {smaller}a smaller model, or "
            "close other programs."
        )
    if sum(file.values()) > disk - DISK_RESERVE:
        fewer = (
            f", store the attention rows of {_layer_words(layers)} only"
            if layers is not None
            and _file_bytes(facts, prompt_tokens, _with_layers(spec, layers)) <= disk - DISK_RESERVE
            else ""
        )
        refusals.append(
            f"The file would take {_size(sum(file.values()))} ({_sum(file)}), {_size(disk)} are "
            f"free on the disk: use fewer tokens{fewer}, or delete runs."
        )
    return refusals


def _layers_below(
    facts: Facts, prompt_tokens: int, spec: CaptureSpec, limit: int
) -> list[int] | None:
    """The most layers, spread evenly over those asked for, whose rows keep the file below the
    limit; at least one. None when all fit."""
    asked = list(range(facts.layers)) if spec.stored_layers is None else spec.stored_layers
    if _file_bytes(facts, prompt_tokens, spec) <= limit or len(asked) < 2:
        return None
    for count in range(len(asked) - 1, 0, -1):
        places = np.linspace(0, len(asked) - 1, count) if count > 1 else [len(asked) // 2]
        layers = [asked[round(float(place))] for place in places]
        if _file_bytes(facts, prompt_tokens, _with_layers(spec, layers)) <= limit:
            break
    return layers


def _file_bytes(facts: Facts, prompt_tokens: int, spec: CaptureSpec) -> int:
    """Bytes of the capture and of the files that its further passes leave."""
    parts = file_parts(facts, prompt_tokens, spec)
    return sum(parts.values()) + pass_bytes(facts, prompt_tokens, spec)


def _pass_advice(facts: Facts, prompt_tokens: int, spec: CaptureSpec) -> list[str]:
    """A second copy may lie where the model was never trained to look."""
    limit = facts.max_positions
    if not spec.second_reading or limit is None or 2 * prompt_tokens <= limit:
        return []
    return [
        f"The second reading reaches position {2 * prompt_tokens:,} and the model's context is "
        f"{limit:,}: what policies that need it keep is then less reliable than on a prompt of at "
        f"most {limit // 2:,} tokens."
    ]


def _with_layers(spec: CaptureSpec, layers: list[int]) -> CaptureSpec:
    return CaptureSpec.from_dict({**spec.to_dict(), "stored_layers": layers})


def _dtype_bytes(facts: Facts, dtype: str, memory: int) -> int:
    """Bytes per weight; "auto" is float32 unless a 16-bit checkpoint would not fit like that
    (backend.models)."""
    if dtype == "auto":
        large = facts.parameters * 4 > 0.6 * memory
        return HALF if large and facts.checkpoint_dtype in ("bfloat16", "float16") else 4
    return 4 if dtype == "float32" else HALF


def _file_limit() -> int:
    text = os.environ.get("KVSCOPE_MAX_FILE_BYTES", "")
    if not text:
        return MAX_FILE_BYTES
    if not text.isdecimal():
        raise AdmissionError(f"KVSCOPE_MAX_FILE_BYTES is '{text}': give a number of bytes.")
    return int(text)


def _layer_words(layers: list[int]) -> str:
    if len(layers) == 1:
        return f"layer {layers[0]}"
    shown = ", ".join(map(str, layers)) if len(layers) <= 12 else f"{layers[0]} to {layers[-1]}"
    return f"{len(layers)} layers ({shown})"


def _size(count: float) -> str:
    """Three significant digits: 4.07 GB, 812 MB, 3 kB."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(count) >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count:.0f} bytes"


def _sum(parts: dict[str, int]) -> str:
    return " + ".join(f"{name} {_size(size)}" for name, size in parts.items())
