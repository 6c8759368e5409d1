"""Where a model's files are: the embedded model, a local folder or the Hugging Face hub.

Only safetensors weights are accepted and code from a model repository is never run. Nothing here
imports torch or transformers.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from cache_store.errors import KVScopeError

DEMO = "demo"
DEMO_FOLDER = Path(__file__).resolve().parent.parent / "models" / "demo"
HUB_TIMEOUT_S = 5.0
HUB_ID = re.compile(r"^[\w.-]+(/[\w.-]+)?$", re.ASCII)
DESCRIPTION_FILES = ["*.json", "*.model", "*.txt", "*.jinja"]
SAMPLE_BYTES = 1 << 20
MAX_JSON_BYTES = 100_000_000  # no model's descriptions come near it
LONGEST_HUB_ID = 200


class ModelError(KVScopeError):
    """A model cannot be found, loaded or captured; the message says why and what to do."""


@dataclass(frozen=True)
class ModelSource:
    """A model's files on this machine and the revision they are: a commit or a content hash."""

    id: str
    folder: Path
    revision: str


def allowed_models() -> list[str] | None:
    """The ids and folders that `KVSCOPE_MODELS` (a comma list) restricts to; None: any model."""
    setting = os.environ.get("KVSCOPE_MODELS", "").strip()
    return [name.strip() for name in setting.split(",") if name.strip()] if setting else None


def available_models() -> list[str]:
    """Models to offer: those `KVSCOPE_MODELS` names, otherwise the embedded model and whatever
    the Hugging Face cache on this machine holds. A named folder of model folders offers each."""
    names = allowed_models()
    if names is None:
        return [DEMO, *_cached_models()]
    models: list[str] = []
    for name in names:
        folder = None if name == DEMO else _folder(name)
        inner = sorted(path.parent for path in folder.glob("*/config.json")) if folder else []
        if folder and inner and not (folder / "config.json").exists():
            models.extend(str(path) for path in inner)
        else:
            models.append(name)
    return models


def _folder(name: str) -> Path | None:
    """The folder on this machine that `name` is, None when it is none."""
    try:
        folder = Path(name).expanduser()
        return folder if name.strip() and folder.is_dir() else None
    except (OSError, RuntimeError, ValueError):  # too long, no such user, no text
        return None


def resolve(model_id: str, revision: str | None = None, *, weights: bool = True) -> ModelSource:
    """Find a model's files; with `weights` False only configuration and tokenizer are needed.

    Hub models are downloaded when the hub answers within seconds, otherwise taken from the local
    cache. Raises ModelError when the model is not allowed, not found, or has no safetensors.
    """
    if allowed_models() is not None and model_id not in available_models():
        raise ModelError(
            f"The model '{_shown(model_id)}' is not offered here (KVSCOPE_MODELS allows "
            f"{', '.join(available_models())}): choose one of these."
        )
    folder = DEMO_FOLDER if model_id == DEMO else _folder(model_id)
    if folder is not None:
        return _local(model_id, folder, weights)
    hub = HUB_ID.fullmatch(model_id) and ".." not in model_id and len(model_id) < LONGEST_HUB_ID
    if not hub:
        raise ModelError(
            f"'{_shown(model_id)}' is neither a folder on this machine nor a Hugging Face model "
            "id: check the path, or write the id as 'owner/name'."
        )
    return _hub(model_id, revision, weights)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file that anyone may have written. Raises ModelError, one sentence,
    for whatever else is there."""
    try:
        if not path.is_file():
            raise OSError("no regular file")
        with path.open("rb") as file:
            data = file.read(MAX_JSON_BYTES + 1)
        return _json_object(data)
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            f"The {path.name} in {_shown(str(path.parent))} cannot be read "
            f"({_first_line(error)}): copy the whole model again."
        ) from error


def _json_object(data: bytes) -> dict[str, Any]:
    """Raises ValueError or RecursionError for anything but an object."""
    if len(data) > MAX_JSON_BYTES:
        raise ValueError(f"more than {MAX_JSON_BYTES / 1e6:.0f} MB")
    value = json.loads(data)
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    return value


def safetensors_files(folder: Path) -> list[Path]:
    """The weight files that transformers would read. Raises ModelError for a broken index."""
    single = folder / "model.safetensors"
    if single.exists():
        return [single]
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return []
    named = read_json(index).get("weight_map")
    files = list(named.values()) if isinstance(named, dict) else []
    if not files or not all(isinstance(name, str) and Path(name).name for name in files):
        raise ModelError(
            f"The file {_shown(str(index))} is not a weight index, it maps no tensors to files: "
            "copy the whole model again."
        )
    return [folder / name for name in sorted({Path(name).name for name in files})]


def safetensors_header(path: Path) -> dict[str, list[int]]:
    """The tensors a file holds: name -> shape. Raises ModelError for another format."""
    try:
        if not path.is_file():
            raise OSError("no regular file")
        with path.open("rb") as file:
            size = path.stat().st_size
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= min(size, MAX_JSON_BYTES):
                raise ValueError("its header is longer than the file")
            header = _json_object(file.read(length))
        header.pop("__metadata__", None)
        shapes = {name: _shape(tensor, size) for name, tensor in header.items()}
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            f"The file {_shown(str(path))} is not a safetensors file: {_first_line(error)}."
        ) from error
    return shapes


def _shape(tensor: Any, size: int) -> list[int]:
    """A tensor's shape; ValueError where the header states none that fits the file's bytes."""
    shape = tensor.get("shape") if isinstance(tensor, dict) else None
    if not isinstance(shape, list) or not all(type(n) is int and 0 <= n <= size for n in shape):
        raise ValueError("its header states no shapes")
    if math.prod(shape) > 2 * size:  # the smallest numbers have four bits
        raise ValueError("it is shorter than its header says")
    return shape


def count_parameters(folder: Path) -> int:
    """Parameters in the weight files, 0 without weight files; only headers are read."""
    headers = [safetensors_header(path) for path in safetensors_files(folder) if path.exists()]
    return sum(math.prod(shape) for header in headers for shape in header.values())


def _local(model_id: str, folder: Path, weights: bool) -> ModelSource:
    shown = _shown(str(folder))
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"The folder {shown} holds no config.json, so it is not a model: choose a folder "
            "written by save_pretrained."
        )
    files = safetensors_files(folder)
    missing = [path.name for path in files if not path.is_file()]
    if weights and missing:
        raise ModelError(
            f"The model folder {shown} lacks {_shown(missing[0])}: copy the whole model."
        )
    if weights and not files:
        raise ModelError(_no_safetensors(model_id))
    known = [folder / "config.json", *(path for path in files if path.is_file())]
    try:
        state = tuple((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in known)
        revision = _content_hash(state)
    except OSError as error:
        raise ModelError(
            f"The model folder {shown} cannot be read ({error.strerror}): check who may read it."
        ) from error
    return ModelSource(model_id, folder, revision)


@lru_cache(maxsize=32)
def _content_hash(state: tuple[tuple[str, int, int], ...]) -> str:
    """A hash of the configuration and of each weight file's size, beginning and end."""
    digest = hashlib.sha256()
    for name, size, _ in state:
        digest.update(size.to_bytes(8, "little"))
        with open(name, "rb") as file:
            digest.update(file.read(2 * SAMPLE_BYTES))
            file.seek(max(0, size - SAMPLE_BYTES))
            digest.update(file.read())
    return digest.hexdigest()[:40]


def _hub(model_id: str, revision: str | None, weights: bool) -> ModelSource:
    from huggingface_hub import HfApi, errors, snapshot_download

    patterns = [*DESCRIPTION_FILES, "model*.safetensors"] if weights else DESCRIPTION_FILES
    online = True
    commit = revision
    try:
        info = HfApi().model_info(model_id, revision=revision, timeout=HUB_TIMEOUT_S)
    except errors.GatedRepoError as error:
        raise ModelError(
            f"The model '{model_id}' is gated: accept its licence on huggingface.co and set "
            "HF_TOKEN, or give a local folder."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ModelError(
            f"The model '{model_id}' has no revision '{revision}': leave the revision empty for "
            "the newest."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelError(
            f"Hugging Face has no model '{model_id}' that this machine may read: check the id, "
            "set HF_TOKEN for a private model, or give a local folder."
        ) from error
    except Exception:  # no network, offline mode, a proxy's refusal: the cache may still have it
        online = False
    if online:
        names = [sibling.rfilename for sibling in info.siblings or []]
        if weights and not any(re.fullmatch(r"model.*\.safetensors", name) for name in names):
            raise ModelError(_no_safetensors(model_id))
        commit = info.sha
    try:
        folder = Path(
            snapshot_download(
                model_id, revision=commit, allow_patterns=patterns, local_files_only=not online
            )
        )
    except Exception as error:
        if online:
            raise ModelError(
                f"Downloading the model '{model_id}' failed ({_first_line(error)}): try again, "
                "or give a local folder."
            ) from error
        folder = None
    if folder is None or not (folder / "config.json").exists():
        raise ModelError(_unreachable(model_id))
    if weights:
        files = safetensors_files(folder)
        if not files and any(folder.glob("*.bin")):
            raise ModelError(_no_safetensors(model_id))
        if not files or not all(path.exists() for path in files):
            raise ModelError(_unreachable(model_id))
    return ModelSource(model_id, folder, folder.name)  # snapshots/<commit>


def _cached_models() -> list[str]:
    """Ids in the Hugging Face cache that have a configuration and safetensors weights."""
    from huggingface_hub.constants import HF_HUB_CACHE

    names = {
        path.parents[2].name.removeprefix("models--").replace("--", "/")
        for path in Path(HF_HUB_CACHE).glob("models--*/snapshots/*/config.json")
        if any(path.parent.glob("model*.safetensors"))
    }
    return sorted(names)


def _no_safetensors(model_id: str) -> str:
    return (
        f"The model '{model_id}' has no safetensors weights (model*.safetensors), the only format "
        "that is loaded because others can run code: save it with save_pretrained first."
    )


def _unreachable(model_id: str) -> str:
    return (
        f"The model '{model_id}' is not on this machine and Hugging Face cannot be reached: give "
        "a local folder, point HF_HOME at a cache that holds it, or use 'demo'."
    )


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return _shown(lines[0] if lines else type(error).__name__, 300).rstrip(".")


def _shown(text: str, limit: int = 120) -> str:
    """What others wrote, inside a message: one short line, nothing that is no text."""
    line = " ".join(text.encode("utf-8", "replace").decode().split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
