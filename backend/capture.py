"""One model run with everything captured, from a specification to a finished file."""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from transformers import PreTrainedModel

from backend.generation import TokenChooser, generate, repetition_penalty, stop_tokens
from backend.memory import PeakMemory, out_of_memory
from backend.models import LoadedModel, ModelFacts, load, load_tokenizer, model_facts
from backend.passes import record_asked
from backend.prefill import Forward, new_cache, prefill_chunk
from backend.progress import CancelCheck, Cancelled, Progress, ProgressCallback
from backend.recorder import RECENT, SINK, Recorder
from backend.sources import ModelError
from backend.spec import CaptureSpec, PromptError
from backend.stream import Background
from backend.text import EncodedPrompt, TextStream, check_length, encode_prompt
from cache_store.errors import StoreError
from cache_store.files import CAPTURE_FILE, check_run_id, new_run_id
from cache_store.writer import CaptureWriter, versions
from kvpolicies.attention import observing
from kvpolicies.choice import policy_of
from kvpolicies.errors import PolicyError
from kvpolicies.model_facts import rotary_of
from kvpolicies.rotary import frequencies_of

__all__ = ["Cancelled", "Progress", "capture"]

WAITING_BYTES = 256_000_000  # queries of the prompt that may wait for the decode to begin


def capture(
    spec: CaptureSpec,
    home: Path | str,
    *,
    run_id: str | None = None,
    loaded: LoadedModel | None = None,
    progress: ProgressCallback | None = None,
    cancelled: CancelCheck | None = None,
) -> str:
    """Run a model on a prompt and write `<home>/<run_id>/capture.duckdb`; returns the run id.

    `loaded` is used instead of loading `spec.model_id`. `progress` hears of the phases `load`,
    `prefill` (layers), `decode` (tokens, with the text so far) and `write`; `cancelled` is asked
    between layers and tokens. Raises PromptError and ModelError before anything runs, StoreError
    when the file cannot be written, and Cancelled; in every case nothing is left behind. Further
    passes (`spec.passes`) follow when the file is complete: it stays when one of them fails
    (PassError) or is cancelled.
    """
    run = _Run(spec, progress or (lambda _: None), cancelled or (lambda: False))
    run_id = check_run_id(run_id or new_run_id())
    folder = Path(home) / run_id
    if (folder / CAPTURE_FILE).exists():
        raise StoreError(f"Run {run_id} exists already; a new run needs a new id.")
    run.prepare(loaded)
    try:
        with CaptureWriter(folder, run_id) as writer:
            run.run(writer)
    except BaseException as error:
        with contextlib.suppress(OSError):
            folder.rmdir()  # only when nothing else is in it
        if out_of_memory(error):
            raise ModelError(
                f"The memory of this machine is not enough for {len(run.prompt.ids):,} prompt "
                f"tokens on '{spec.model_id}': shorten the prompt, choose a smaller model, or "
                "dtype bfloat16."
            ) from error
        raise
    record_asked(spec, home, run_id, run.progress, run.cancelled, loaded=run.loaded)
    return run_id


class _Run:
    """The steps of one capture and what they share."""

    prompt: EncodedPrompt
    loaded: LoadedModel

    def __init__(
        self, spec: CaptureSpec, progress: ProgressCallback, cancelled: CancelCheck
    ) -> None:
        self.spec, self.progress, self.cancelled = spec, progress, cancelled
        self.asked_at = _now()
        self.started_at = self.asked_at
        self.seconds: dict[str, float] = {}
        self.tokens: list[int] = []
        self.pieces: list[str] = []
        self.text = ""

    def prepare(self, loaded: LoadedModel | None) -> None:
        """Check the prompt against the model before its weights are read, then read them."""
        spec = self.spec
        _check_lookaheads(spec)
        self._report("load", 0, 1)
        with self._timed("load"):
            if loaded is None:
                facts = model_facts(spec.model_id, spec.revision)
                self._encode(load_tokenizer(spec.model_id, spec.revision), facts)
                loaded = load(
                    spec.model_id, revision=spec.revision, dtype=spec.dtype, device=spec.device
                )
            else:
                self._encode(loaded.tokenizer, loaded.facts)
        self.loaded = loaded
        self._report("load", 1, 1)

    def _encode(self, tokenizer: Any, facts: ModelFacts) -> None:
        self.prompt = encode_prompt(tokenizer, self.spec)
        check_length(self.prompt, facts, self.spec)
        for layer in self.spec.stored_layers or []:
            if layer >= facts.layers:
                raise PromptError(
                    f"stored_layers names layer {layer}, but the model has layers 0 to "
                    f"{facts.layers - 1}."
                )

    def run(self, writer: CaptureWriter) -> None:
        """Prefill, decode and write."""
        peak = PeakMemory(self.loaded.device)
        self.started_at = _now()
        layer_bytes = 4 * len(self.prompt.ids) * self.loaded.facts.query_width
        with Background(WAITING_BYTES // layer_bytes) as background, torch.inference_mode():
            recorder, reason = self._generate(writer, background)
            began = time.perf_counter()
            self._report("write", 0, 1)
            # while the last rows are written; what only their end tells follows
            tokens, row = self._token_table(), self._capture_row(reason)
        self.seconds["write"] = time.perf_counter() - began
        with self._timed("write"):
            writer.add("token", tokens)
            row["settings"]["clamped_values"] = recorder.clamped
            row["finished_at"] = _now()
            row["peak_memory_bytes"] = peak.bytes()
            row["timings"] = {name: round(value, 4) for name, value in self.seconds.items()}
            self._stop_if_cancelled()
            writer.finish(row)
        self._report("write", 1, 1)

    def _generate(self, writer: CaptureWriter, background: Background) -> tuple[Recorder, str]:
        spec, model, prompt = self.spec, self.loaded.model, self.prompt
        facts = self.loaded.facts
        self.chunk = prefill_chunk(model, facts, len(prompt.ids))
        chunks = -(-len(prompt.ids) // self.chunk)
        layers_done = 0

        def on_layer(layer: int) -> None:
            nonlocal layers_done
            self._stop_if_cancelled()
            writer.check()
            if layers_done < chunks * facts.layers:
                self._report("prefill", layers_done, chunks * facts.layers)
                layers_done += 1

        recorder = Recorder(
            facts,
            writer,
            background,
            prompt_length=len(prompt.ids),
            length=len(prompt.ids) + spec.max_new_tokens,
            window=spec.window,
            top_k=spec.top_k,
            stored_layers=self._stored_layers(),
            on_layer=on_layer,
        )
        ids = torch.tensor([prompt.ids], device=model.device)
        stop = stop_tokens(model, self.loaded.tokenizer) if spec.stop_at_eos else []
        choose = TokenChooser(model, spec, ids, stop)
        cache = new_cache(model, len(prompt.ids) + spec.max_new_tokens)
        forward = Forward(model, cache, recorder, self.chunk)
        words = TextStream(self.loaded.tokenizer, prompt.ids)
        began = time.perf_counter()

        def on_token(token: int) -> None:
            if not self.tokens:
                background.start()
                self.seconds["prefill"] = time.perf_counter() - began
                self._report("prefill", layers_done, layers_done)
            self._stop_if_cancelled()
            self.tokens.append(token)
            self.pieces.append(words.push(token))
            self.text += self.pieces[-1]
            self._report("decode", len(self.tokens), spec.max_new_tokens, self.text)

        with observing(model, recorder):
            reason = generate(
                forward,
                ids,
                choose,
                max_new_tokens=spec.max_new_tokens,
                stop=stop,
                on_token=on_token,
            )
        recorder.finish()
        self.pieces[-1] += words.rest()
        self.seconds["decode"] = time.perf_counter() - began - self.seconds["prefill"]
        self.stop = stop
        return recorder, reason

    def _stored_layers(self) -> list[int]:
        layers = self.spec.stored_layers
        return list(range(self.loaded.facts.layers)) if layers is None else layers

    def _token_table(self) -> dict[str, Any]:
        prompt = self.prompt
        pieces = prompt.pieces + self.pieces
        question = len(prompt.ids) - prompt.context_length
        ends = np.cumsum([len(piece) for piece in pieces])
        return {
            "position": np.arange(len(pieces)),
            "token_id": prompt.ids + self.tokens,
            "text": pieces,
            "segment": ["context"] * prompt.context_length
            + ["question"] * question
            + ["response"] * len(self.tokens),
            "char_start": ends - [len(piece) for piece in pieces],
            "char_end": ends,
        }

    def _capture_row(self, reason: str) -> dict[str, Any]:
        spec, facts, prompt = self.spec, self.loaded.facts, self.prompt
        settings = spec.to_dict()
        for elsewhere in ("context", "question", "title", "seed", "window", "top_k"):
            del settings[elsewhere]
        settings |= {
            "stop_tokens": self.stop,
            "repetition_penalty": repetition_penalty(self.loaded.model),
            "prefill_chunk": self.chunk if self.chunk < len(prompt.ids) else None,
        }
        rotary = _rotary(self.loaded.model, len(prompt.ids) + len(self.tokens))
        if rotary is not None:
            settings["rotary"] = rotary
        return {
            "title": spec.title or _title(spec),
            "created_at": self.asked_at,
            "model_id": spec.model_id,
            "model_revision": self.loaded.revision,
            "architecture": facts.architecture,
            "layers": facts.layers,
            "query_heads": facts.query_heads,
            "kv_heads": facts.kv_heads,
            "head_dim": facts.head_dim,
            "dtype": self.loaded.dtype,
            "device": self.loaded.device,
            "scaling": list(facts.scaling),
            "softcap": facts.softcap,
            "sliding_window": list(facts.sliding_window),
            "prompt_length": len(prompt.ids),
            "context_length": prompt.context_length,
            "response_length": len(self.tokens),
            "stored_layers": self._stored_layers(),
            "window": min(spec.window, len(prompt.ids)),
            "top_k": spec.top_k,
            "sink": SINK,
            "recent": RECENT,
            "settings": settings,
            "seed": spec.seed,
            "versions": versions()
            | {
                "python": platform.python_version(),
                "tokenizers": tokenizers.__version__,
                "torch": torch.__version__,
                "transformers": transformers.__version__,
            },
            "started_at": self.started_at,
            "finish_reason": reason,
        }

    def _report(self, phase: str, done: int, total: int, text: str = "") -> None:
        self.progress(Progress(phase, done, total, text))

    def _stop_if_cancelled(self) -> None:
        if self.cancelled():
            raise Cancelled

    @contextlib.contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - began


def _check_lookaheads(spec: CaptureSpec) -> None:
    """Before the model runs: a policy that cannot be built would fail after the capture."""
    for kind, asked in spec.passes:
        if kind == "lookahead":
            try:
                policy_of(asked["policy"])
            except PolicyError as error:
                raise PromptError(f"A lookahead's policy cannot be used: {error}.") from error


def _rotary(model: PreTrainedModel, length: int) -> dict[str, Any] | None:
    """The rotary embedding as `Capture.trace` reads it; None where it cannot be said."""
    try:
        tables = rotary_of(model, length)
    except PolicyError:  # no policy can run on this model, its attention can still be looked at
        return None
    return None if tables is None else frequencies_of(tables)


def _title(spec: CaptureSpec) -> str:
    """The beginning of the prompt's first line that says something."""
    line = next((line.strip() for line in spec.prompt.splitlines() if line.strip()), "")
    return line if len(line) <= 60 else line[:59].rstrip() + "…"


def _now() -> datetime:
    return datetime.now(UTC).replace(tzinfo=None)
