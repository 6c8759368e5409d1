"""A policy run for real against the full cache: the derived kind `policy_run`.

The capture's response is the forced text of two passes, one with the full cache and one under the
policy: their logits, bytes and times are compared step by step. A third pass lets the policy write
its own response, with the capture's generation settings and seed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from backend.derive import write_all
from backend.generation import TokenChooser
from backend.memory import out_of_memory
from backend.models import LoadedModel
from backend.passes import captured_model
from backend.progress import CancelCheck, ProgressCallback, Watch
from backend.replays import Columns, fact_columns, policy_spec
from backend.sources import ModelError
from backend.spec import CaptureSpec
from backend.text import TextStream
from cache_store.errors import KVScopeError
from cache_store.files import CAPTURE_FILE, check_run_id
from cache_store.reader import Capture, CaptureInfo
from cache_store.writer import DerivedWriter
from kvpolicies.attention import UnsupportedAttention, observing
from kvpolicies.choice import policy_of
from kvpolicies.errors import PolicyError
from kvpolicies.generation import Generation, generate
from kvpolicies.policy import Policy, build

SETTINGS = ("max_new_tokens", "min_new_tokens", "sample", "temperature", "top_p", "top_k_sampling")
WARM_UP_TOKENS = 16
LOGIT_ROWS = 64  # compared at once
NO_TOKEN = -1  # where one of two responses is over


class PolicyRunError(KVScopeError):
    """A policy cannot be run on a captured prompt; the message says why."""


def run_policy(
    home: Path | str,
    run_id: str,
    spec: Mapping[str, Any],
    progress: ProgressCallback | None = None,
    cancelled: CancelCheck | None = None,
    *,
    loaded: LoadedModel | None = None,
) -> Path:
    """Run a policy on a captured prompt and write the derived file; returns its path.

    spec: {"policy": choice}. Tables `token`, `step`, `stage` and `fact` and array `evicted_at` of
    the forced run, as `analysis.replays.PolicyRun` describes them; a token_id of -1 stands where
    one of the responses is over. A result that exists is kept. Raises PolicyRunError for a policy
    that this model cannot run, ModelError when the model is gone or is not the captured one,
    StoreError and Cancelled.
    """
    spec = policy_spec(spec)
    folder = Path(home) / check_run_id(run_id)
    with DerivedWriter(folder, "policy_run", spec) as writer:
        if writer.exists:
            return writer.path
        with Capture.open(folder / CAPTURE_FILE) as capture, _in_words(capture.info):
            watch = Watch(progress, cancelled)
            run = _Run(capture, policy_of(spec["policy"]), watch)
            watch.begin("load", 1, by_layer=False)
            write_all(writer, run.results(loaded or captured_model(capture.info)))
            watch.check()
        return writer.finish()


@contextlib.contextmanager
def _in_words(info: CaptureInfo) -> Iterator[None]:
    try:
        yield
    except (PolicyError, UnsupportedAttention) as error:
        raise PolicyRunError(PolicyError(error).sentence) from error
    except Exception as error:
        if not out_of_memory(error):
            raise
        raise ModelError(
            f"The memory of this machine is not enough to run a policy on {info.prompt_length:,} "
            "prompt tokens: close other programs, or capture a shorter prompt."
        ) from error


@dataclass(frozen=True)
class _Measured:
    """What is kept of one forced pass; its cache is dropped before the next one."""

    logits: torch.Tensor  # float32 (T + 1, vocabulary)
    seconds: dict[str, float]
    step_ms: list[float]
    cache_bytes: list[int]
    prefill_bytes: int
    compressed_bytes: int
    simulated: bool
    evicted_at: np.ndarray

    @classmethod
    def of(cls, out: Generation) -> _Measured:
        return cls(
            out.logits,
            out.seconds,
            out.step_ms,
            out.cache_bytes,
            out.prefill_bytes,
            out.compressed_bytes,
            out.simulated,
            out.result.evicted_at.numpy(),
        )

    @property
    def peak_bytes(self) -> int:
        return max([self.prefill_bytes, *self.cache_bytes])


class _Run:
    """The passes over one prompt, and what comes of them."""

    def __init__(self, capture: Capture, policy: Policy, watch: Watch) -> None:
        self.info, self.policy, self.watch = capture.info, policy, watch
        tokens = capture.tokens()
        prompt = self.info.prompt_length
        ids = tokens.token_id.to_numpy().astype(np.int64)
        self.prompt, self.response = ids[:prompt], ids[prompt:].tolist()
        self.pieces = tokens.text.tolist()[prompt:]
        self.stop = [int(token) for token in self.info.settings.get("stop_tokens") or ()]

    def results(self, loaded: LoadedModel) -> dict[str, np.ndarray | Columns]:
        """Tables and arrays by name."""
        began = time.perf_counter()
        model = loaded.model
        self.ids = torch.from_numpy(self.prompt)[None].to(model.device)
        with observing(model, self.watch):
            self._warm_up(model)
            policy = self._forced(model, self.policy, "policy")
            full = self._forced(model, build("full"), "full cache")
            own, stopped = self._own_response(model, policy)
        steps = self._step_table(full, policy)
        tokens = self._token_table(loaded, own)
        names = list(dict.fromkeys([*full.seconds, *policy.seconds]))
        facts = self._facts(full, policy, steps, own) | {
            "stopped": float(stopped),
            "seconds": time.perf_counter() - began,
        }
        return {
            "token": tokens,
            "step": steps,
            "stage": {
                "stage": names,
                "seconds": [policy.seconds.get(name, 0.0) for name in names],
                "full_seconds": [full.seconds.get(name, 0.0) for name in names],
            },
            "fact": fact_columns(facts),
            "evicted_at": policy.evicted_at,
        }

    def _warm_up(self, model: PreTrainedModel) -> None:
        """The first forwards of a process take memory and wake threads; none of it is measured."""
        ids = self.ids[:, :WARM_UP_TOKENS]
        generate(model, ids, build("full"), forced=self.response[:2], eos_token_id=self.stop)

    def _forced(self, model: PreTrainedModel, policy: Policy, name: str) -> _Measured:
        return _Measured.of(self._generate(model, policy, name, forced=self.response))

    def _generate(
        self, model: PreTrainedModel, policy: Policy, name: str, **how: Any
    ) -> Generation:
        info = self.info
        total = len(how.get("forced") or ()) or how["max_new_tokens"]
        self.watch.begin(f"{name}, prompt", info.layers)

        def on_token(step: int, token: int) -> None:
            if step == 1:
                self.watch.begin(f"{name}, response", total, by_layer=False)
            self.watch.advance()

        return generate(
            model,
            self.ids,
            policy,
            info.context_length,
            eos_token_id=self.stop,
            on_token=on_token,
            **how,
        )

    def _own_response(self, model: PreTrainedModel, policy: _Measured) -> tuple[list[int], bool]:
        """What the policy writes itself, and whether it came to an end.

        Where it would have chosen every forced token, the forced pass was that response already.
        """
        choose = self._chooser(model)
        rows = (row.to(model.device) for row in policy.logits)
        if all(choose(row) == token for row, token in zip(rows, self.response, strict=False)):
            return self.response, self.info.finish_reason == "stop"
        length = int(self.info.settings.get("max_new_tokens") or len(self.response))
        choose = self._chooser(model)
        out = self._generate(
            model, self.policy, "own response", choose=choose, max_new_tokens=length
        )
        return out.tokens, out.finish_reason == "stop"

    def _chooser(self, model: PreTrainedModel) -> Callable[[torch.Tensor], int]:
        """Picks tokens as the capture did, from the beginning of its random numbers."""
        settings = {
            name: self.info.settings[name] for name in SETTINGS if name in self.info.settings
        }
        spec = CaptureSpec(context="captured", seed=self.info.seed or 0, **settings)
        chooser = TokenChooser(model, spec, self.ids, self.stop)
        return lambda logits: int(chooser(logits[None]))

    def _step_table(self, full: _Measured, policy: _Measured) -> Columns:
        divergence, nll_full, nll_policy = compare(full.logits, policy.logits, self.response)
        return {
            "step": np.arange(1, len(self.response) + 1, dtype=np.int32),
            "kl": divergence,
            "nll_full": nll_full,
            "nll_policy": nll_policy,
            "cache_bytes": np.array(policy.cache_bytes, np.int64),
            "full_cache_bytes": np.array(full.cache_bytes, np.int64),
            "ms": np.array(policy.step_ms, np.float64),
            "full_ms": np.array(full.step_ms, np.float64),
        }

    def _token_table(self, loaded: LoadedModel, own: list[int]) -> Columns:
        words = TextStream(loaded.tokenizer, self.prompt.tolist())
        texts = [words.push(token) for token in own]
        if texts:
            texts[-1] += words.rest()
        steps = max(len(own), len(self.response))
        ids, full_ids = (
            [*tokens, *[NO_TOKEN] * (steps - len(tokens))] for tokens in (own, self.response)
        )
        return {
            "step": np.arange(1, steps + 1, dtype=np.int32),
            "token_id": np.array(ids, np.int32),
            "text": [*texts, *[""] * (steps - len(texts))],
            "full_token_id": np.array(full_ids, np.int32),
            "full_text": [*self.pieces, *[""] * (steps - len(self.pieces))],
            "agrees": np.array(ids) == np.array(full_ids),
        }

    def _facts(
        self, full: _Measured, policy: _Measured, steps: Columns, own: list[int]
    ) -> dict[str, float]:
        """Agreement is the share of the longer response's steps with the same token in both."""
        pairs = list(zip(own, self.response, strict=False))
        differs = [step for step, (one, other) in enumerate(pairs, 1) if one != other]
        if not differs and len(own) != len(self.response):
            differs = [len(pairs) + 1]
        equal = sum(one == other for one, other in pairs)
        return {
            "first_difference": float(differs[0]) if differs else float("nan"),
            "agreement": equal / max(1, len(own), len(self.response)),
            "mean_kl": float(np.mean(steps["kl"])),
            "forced_nll": float(np.mean(steps["nll_policy"])),
            "full_nll": float(np.mean(steps["nll_full"])),
            "prefill_bytes": float(policy.prefill_bytes),
            "compressed_bytes": float(policy.compressed_bytes),
            "peak_bytes": float(policy.peak_bytes),
            "decode_peak_bytes": float(max([policy.compressed_bytes, *policy.cache_bytes])),
            "full_peak_bytes": float(full.peak_bytes),
            "ms_per_step": float(np.median(policy.step_ms)),
            "full_ms_per_step": float(np.median(full.step_ms)),
            "simulated": float(policy.simulated),
        }


def compare(
    full: torch.Tensor, policy: torch.Tensor, tokens: list[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """KL(full ‖ policy) of each step and both negative log-likelihoods of its token, in nats.

    full, policy: float32 (at least T, vocabulary) logits, row t - 1 predicts token t. Each result
    is float64 (T,).
    """
    parts = []
    for start in range(0, len(tokens), LOGIT_ROWS):
        chosen = torch.tensor(tokens[start : start + LOGIT_ROWS])[:, None]
        rows = slice(start, start + len(chosen))
        first, second = full[rows].double().log_softmax(-1), policy[rows].double().log_softmax(-1)
        gaps = torch.where(first > -torch.inf, first.exp() * (first - second), 0.0)
        numbers = (
            gaps.sum(-1).clamp_min(0.0),  # below it only by rounding
            -first.gather(1, chosen)[:, 0],
            -second.gather(1, chosen)[:, 0],
        )
        parts.append(torch.stack(numbers))
    whole = torch.cat(parts, 1).numpy() if parts else np.zeros((3, 0))
    return whole[0], whole[1], whole[2]
