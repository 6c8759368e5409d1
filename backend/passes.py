"""Further passes of the model over a captured prompt: what some policies need in replay.

Each is one derived file beside the capture: `lookahead` (LAQ), `second_reading` (KVzip, KVCompose)
and `model_facts` (the weights' share: output norms, rotary embedding).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from backend.memory import out_of_memory
from backend.models import LoadedModel, load
from backend.prefill import prefill_chunk
from backend.progress import CancelCheck, ProgressCallback, Watch
from backend.sources import ModelError
from backend.spec import MAX_LOOKAHEAD, CaptureSpec
from backend.text import TextStream
from cache_store.errors import KVScopeError
from cache_store.files import CAPTURE_FILE, check_run_id
from cache_store.reader import Capture, CaptureInfo
from cache_store.tracing import ROTARY_AHEAD
from cache_store.writer import DerivedWriter
from kvpolicies.attention import observing
from kvpolicies.cache import EvictingCache
from kvpolicies.choice import canonical, policy_of
from kvpolicies.errors import PolicyError
from kvpolicies.model_facts import has_rotary, output_norms, rotary_of
from kvpolicies.passes import feed, look_ahead, read_again
from kvpolicies.policy import Policy, build

HALF_MAX = float(torch.finfo(torch.float16).max)


class PassError(KVScopeError):
    """A further pass cannot be recorded; the message says why."""


def lookahead_spec(choice: Mapping[str, Any], steps: int) -> dict[str, Any]:
    """The specification under which a lookahead is kept: the policy of the small cache it is
    drafted on, and how many tokens. Raises PassError."""
    if type(steps) is not int or not 1 <= steps <= MAX_LOOKAHEAD:
        raise PassError(
            f"A lookahead of {steps!r} steps is not possible: use 1 to {MAX_LOOKAHEAD:,}."
        )
    try:
        return {"policy": canonical(choice), "steps": steps}
    except PolicyError as error:
        raise PassError(f"The lookahead's policy cannot be used: {error}.") from error


def record_pass(
    home: Path | str,
    run_id: str,
    kind: str,
    spec: Mapping[str, Any],
    progress: ProgressCallback | None = None,
    cancelled: CancelCheck | None = None,
    *,
    loaded: LoadedModel | None = None,
) -> Path:
    """Run the model over a captured prompt once more and write the derived file; returns its path.

    `lookahead` (spec of `lookahead_spec`): arrays `queries` float16 (layers, query_heads, n, d)
    and `tokens` int64 (n,), table `token` (step, token_id, text).
    `second_reading` (spec {}): `queries` float16 (layers, query_heads, C, d) and `keys` (layers,
    kv_heads, C, d) of the context's second copy, fed right after its first.
    `model_facts` (spec {}): `output_norms` float32 (layers, query_heads, P + T), the norms of
    v W_O, and `rotary_cos`, `rotary_sin` (positions, width) where they can be read.
    Layers that no policy may touch hold zeros. A result that exists is kept. Raises PassError,
    ModelError when the model is gone or is not the captured one, StoreError and Cancelled.
    """
    folder = Path(home) / check_run_id(run_id)
    with Passes(folder, progress, cancelled, loaded) as passes:
        return passes.record(kind, spec)


def record_asked(
    spec: CaptureSpec,
    home: Path | str,
    run_id: str,
    progress: ProgressCallback | None = None,
    cancelled: CancelCheck | None = None,
    *,
    loaded: LoadedModel | None = None,
) -> None:
    """Record the passes that a capture's specification asks for, after its file is complete."""
    if not spec.passes:
        return
    folder = Path(home) / check_run_id(run_id)
    try:
        with Passes(folder, progress, cancelled, loaded) as passes:
            for kind, asked in spec.passes:
                passes.record(kind, asked)
    except KVScopeError as error:
        raise PassError(f"Run {run_id} was captured, but a further pass failed. {error}") from error


class Passes:
    """Several passes over one run: the model is loaded and the prompt read once for all of them.

    with Passes(home / run_id) as passes:
        passes.record("lookahead", lookahead_spec({"key": "snapkv", …}, 8))
        passes.record("second_reading", {})
    """

    def __init__(
        self,
        folder: Path,
        progress: ProgressCallback | None = None,
        cancelled: CancelCheck | None = None,
        loaded: LoadedModel | None = None,
    ) -> None:
        self.folder = folder
        self.watch = Watch(progress, cancelled)
        self._given = loaded
        self._held: tuple[tuple[int, str], EvictingCache, torch.Tensor] | None = None

    def __enter__(self) -> Passes:
        self.capture = Capture.open(self.folder / CAPTURE_FILE)
        self.info = self.capture.info
        return self

    def __exit__(self, *_: object) -> None:
        self._held = None
        self.capture.close()

    def record(self, kind: str, spec: Mapping[str, Any]) -> Path:
        """Write one derived file, unless it is there; see `record_pass`."""
        write, spec = self._asked(kind, spec)
        with DerivedWriter(self.folder, kind, spec) as writer:
            if writer.exists:
                return writer.path
            with torch.inference_mode(), self._in_words(kind):
                write(writer, spec)
            self.watch.check()
            return writer.finish()

    def _asked(
        self, kind: str, spec: Mapping[str, Any]
    ) -> tuple[Callable[[DerivedWriter, dict[str, Any]], None], dict[str, Any]]:
        if kind == "lookahead":
            if sorted(spec) != ["policy", "steps"]:
                raise PassError("A lookahead needs exactly a policy and steps.")
            return self._lookahead, lookahead_spec(spec["policy"], spec["steps"])
        writers = {"second_reading": self._second_reading, "model_facts": self._model_facts}
        if kind not in writers:
            raise PassError(f"There is no pass named '{kind}': use lookahead or second_reading.")
        if spec:
            raise PassError(f"{kind} takes no parameters, but got '{next(iter(spec))}'.")
        return writers[kind], {}

    @contextlib.contextmanager
    def _in_words(self, kind: str) -> Iterator[None]:
        try:
            yield
        except PolicyError as error:
            raise PassError(f"The {kind.replace('_', ' ')} cannot be recorded: {error}.") from error
        except Exception as error:
            if not out_of_memory(error):
                raise
            raise ModelError(
                f"The memory of this machine is not enough for the {kind.replace('_', ' ')} of "
                f"{self.info.prompt_length:,} prompt tokens: close other programs, or capture a "
                "shorter prompt."
            ) from error

    # --- the model and the prompt -------------------------------------------------------------

    @property
    def loaded(self) -> LoadedModel:
        """The captured model, as it was then."""
        if self._given is None:
            self.watch.begin("load", 1)
            self._given = captured_model(self.info)
        return self._given

    def _prompt(self, length: int, granularity: str) -> tuple[EvictingCache, torch.Tensor]:
        """A cache that holds the first `length` prompt tokens whole, and the last logits."""
        key = (length, granularity)
        if self._held is None or self._held[0] != key:
            self._held = None  # its memory goes before the next one comes
            model = self.loaded.model
            cache = EvictingCache(build("full", granularity=granularity), model, hold=True)
            ids = self._ids(length)
            chunk = self._chunk(length)
            parts = ids.split(chunk, dim=1)
            with self._watching("prefill", len(parts) * self.info.layers):
                for part in parts:
                    logits = feed(model, cache, part)
            self._held = (key, cache, logits)
        return self._held[1], self._held[2]

    def _ids(self, length: int) -> torch.Tensor:
        tokens = self.capture.tokens().token_id.to_numpy()[:length]
        return torch.tensor(tokens.astype(np.int64), device=self.loaded.model.device)[None]

    def _chunk(self, length: int) -> int:
        return prefill_chunk(self.loaded.model, self.loaded.facts, length)

    @contextlib.contextmanager
    def _watching(self, phase: str, layers: int) -> Iterator[None]:
        self.watch.begin(phase, layers)
        with observing(self.loaded.model, self.watch):
            yield

    def _check_reach(self, positions: int, what: str) -> None:
        """A table of learned positions ends; rotary embeddings go on."""
        limit = self.loaded.facts.max_positions
        if limit is not None and positions > limit and not has_rotary(self.loaded.model):
            raise PassError(
                f"The {what} would reach position {positions:,} and the model has {limit:,}: "
                "capture a shorter prompt."
            )

    # --- the passes ---------------------------------------------------------------------------

    def _lookahead(self, writer: DerivedWriter, spec: dict[str, Any]) -> None:
        info, policy = self.info, policy_of(spec["policy"])
        _check_lookahead(policy)
        length = info.context_length if policy.scope == "context" else info.prompt_length
        self._check_reach(length + spec["steps"], "lookahead")
        cache, logits = self._prompt(length, policy.granularity)
        model, tokenizer = self.loaded.model, self.loaded.tokenizer
        ends = {int(token) for token in info.settings.get("stop_tokens") or ()}
        with self._watching("lookahead", spec["steps"] * info.layers):
            tokens, queries = look_ahead(model, cache, logits, policy, spec["steps"], ends)
        writer.add_array("queries", self._stacked(queries, info.query_heads, len(tokens)))
        writer.add_array("tokens", np.array(tokens, np.int64))
        words = TextStream(tokenizer, self._ids(length)[0].tolist())
        texts = [words.push(token) for token in tokens]
        texts[-1] += words.rest()
        steps = np.arange(1, len(tokens) + 1, dtype=np.int32)
        writer.add("token", {"step": steps, "token_id": np.array(tokens), "text": texts})

    def _second_reading(self, writer: DerivedWriter, spec: dict[str, Any]) -> None:
        info, context = self.info, self.info.context_length
        if context < 1:
            raise PassError(f"Run {info.id} has no context that could be read a second time.")
        self._check_reach(2 * context, "second reading")
        cache, _ = self._prompt(context, "kv_head")
        chunk = self._chunk(context)
        with self._watching("second reading", -(-context // chunk) * info.layers):
            queries, keys = read_again(
                self.loaded.model, cache, self._ids(context), chunk_length=chunk
            )
        writer.add_array("queries", self._stacked(queries, info.query_heads, context))
        writer.add_array("keys", self._stacked(keys, info.kv_heads, context))

    def _model_facts(self, writer: DerivedWriter, spec: dict[str, Any]) -> None:
        info, model = self.info, self.loaded.model
        norms = np.zeros((info.layers, info.query_heads, info.length), np.float32)
        self.watch.begin("model facts", info.layers)
        for layer in range(info.layers):
            self.watch.advance()
            values = torch.from_numpy(self.capture.states(layer, "v")).to(model.device)
            norms[layer] = output_norms(model, layer, values).cpu().numpy()
        writer.add_array("output_norms", norms)
        rotary = rotary_of(model, info.length + ROTARY_AHEAD)
        if rotary is not None:
            for name, table in zip(("rotary_cos", "rotary_sin"), rotary, strict=True):
                writer.add_array(name, table.float().cpu().numpy())

    def _stacked(self, states: list[torch.Tensor], heads: int, count: int) -> np.ndarray:
        """float16 (layers, heads, count, d); zeros for layers that have none."""
        shape = (self.info.layers, heads, count, self.info.head_dim)
        stacked = np.zeros(shape, np.float16)
        for layer, one in enumerate(states):
            if one.numel():
                stacked[layer] = one.float().clamp(-HALF_MAX, HALF_MAX).half().cpu().numpy()
        return stacked


def captured_model(info: CaptureInfo) -> LoadedModel:
    """Load the model that a run was captured with, in its revision, number format and device.

    Raises ModelError, one sentence, when it is gone, or is not the same any more.
    """
    model_id = info.model_id or ""
    try:
        loaded = load(
            model_id,
            revision=info.model_revision,
            dtype=info.dtype or "auto",
            device=info.device or "auto",
        )
    except ModelError as error:
        raise ModelError(
            f"The model of run {info.id} cannot be loaded again, so nothing more can be recorded "
            f"for it. {error}"
        ) from error
    if info.model_revision is not None and loaded.revision != info.model_revision:
        raise ModelError(
            f"The model '{model_id}' changed since run {info.id} was captured (revision "
            f"{info.model_revision[:12]} then, {loaded.revision[:12]} now): capture the prompt "
            "again."
        )
    facts = loaded.facts
    now = (facts.layers, facts.query_heads, facts.kv_heads, facts.head_dim)
    if now != (info.layers, info.query_heads, info.kv_heads, info.head_dim):
        raise ModelError(
            f"The model '{model_id}' has another shape than the one that run {info.id} was "
            "captured with: capture the prompt again."
        )
    return loaded


def _check_lookahead(policy: Policy) -> None:
    further = {"lookahead", "second_reading", "future"} & set(policy.needs)
    if further:
        raise PassError(
            f"{policy.title} cannot draft a lookahead: it needs {' and '.join(sorted(further))} "
            "itself; choose a policy such as snapkv."
        )
