"""All cells of one prompt: one prefill, many forks, one row for each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from backend.generation import stop_tokens
from backend.memory import out_of_memory
from backend.models import LoadedModel
from backend.prefill import prefill_chunk
from backend.sources import ModelError
from backend.spec import CaptureSpec, PromptError
from backend.study.bases import Bases, Compressed, compresses_first
from backend.study.decoding import Decoder, Response
from backend.study.estimate import TOGETHER, together
from backend.study.scores import SCORES
from backend.study.spec import Cell, StudySpec
from backend.text import check_length, encode_prompt
from cache_store.study import COLUMNS
from kvpolicies.attention import UnsupportedAttention, observing
from kvpolicies.choice import policy_of
from kvpolicies.errors import PolicyError
from kvpolicies.model_facts import has_rotary
from kvpolicies.policy import Policy, build
from kvpolicies.schedules import AfterPrefill, Sliding

Row = dict[str, Any]


def run_example(
    loaded: LoadedModel,
    spec: StudySpec,
    example: Mapping[str, Any],
    *,
    check: Callable[[], None] = lambda: None,
    on_cell: Callable[[int], None] = lambda done: None,
    most: int = TOGETHER,
) -> list[Row]:
    """The rows of one prompt: the full cache, then every cell of the study in order.

    example: a row of the study's examples (`answers` and `facts` are JSON). What a policy refuses,
    and a prompt that cannot be run, are rows with an `error`. `check` is called at every
    attention call of the model and may raise to stop; `on_cell(done)` counts finished cells; at
    `most` so many are decoded together.
    Raises ModelError where memory is not enough.
    """
    run = _Run(loaded, spec, example, check, on_cell, most)
    try:
        with torch.inference_mode(), observing(loaded.model, lambda *_, **__: check()):
            return run.rows()
    except PromptError as error:
        return run.refused(str(error))
    except (PolicyError, UnsupportedAttention) as error:
        return run.refused(PolicyError(error).sentence)
    except Exception as error:
        if not out_of_memory(error):
            raise
        raise ModelError(
            "The memory of this machine is not enough for a prompt of this study: close other "
            "programs, or take shorter prompts."
        ) from error


class _Run:
    def __init__(
        self,
        loaded: LoadedModel,
        spec: StudySpec,
        example: Mapping[str, Any],
        check: Callable[[], None],
        on_cell: Callable[[int], None],
        most: int,
    ) -> None:
        self.loaded, self.spec, self.example = loaded, spec, example
        self.check, self.on_cell, self.most = check, on_cell, most
        self.facts = json.loads(example["facts"])
        self.answers = tuple(json.loads(example["answers"]))
        self.cells = spec.cells()
        self.alone = "latency" in spec.measures
        self.compared = bool({"nll", "kl"} & set(spec.measures))
        self.prompt_tokens: int | None = None

    def refused(self, sentence: str) -> list[Row]:
        return [self._row(cell) | {"error": sentence} for cell in self.cells]

    def rows(self) -> list[Row]:
        policies = [self._policy(cell) for cell in self.cells]
        bases, decoder = self._read(policies)
        full = bases.compress(build("full"), 0)
        found, reference = decoder.reference(full.cache, full.logits, keep_logits=self.compared)
        self.reference, self.full_bytes = reference, full.held_bytes
        rows = {0: self._measured(self.cells[0], full, found)}
        self.on_cell(1)
        del full
        waiting: list[tuple[int, Compressed]] = []
        for number, (cell, policy) in enumerate(zip(self.cells, policies, strict=True)):
            if number == 0:
                continue
            try:
                if isinstance(policy, PolicyError):
                    raise policy
                waiting.append((number, bases.compress(policy, len(reference.tokens))))
            except (PolicyError, UnsupportedAttention) as error:
                rows[number] = self._row(cell) | {"error": PolicyError(error).sentence}
            if len(waiting) == min(self.most, together(self.full_bytes)):
                rows |= self._answered(decoder, waiting)
                waiting = []
            self.on_cell(len(rows))
        rows |= self._answered(decoder, waiting)
        self.on_cell(len(rows))
        return [rows[number] for number in sorted(rows)]

    def _policy(self, cell: Cell) -> Policy | PolicyError:
        try:
            return policy_of(cell.choice)
        except PolicyError as error:
            return error

    def _read(self, policies: list[Policy | PolicyError]) -> tuple[Bases, Decoder]:
        """The prompt, read once, and how it is answered."""
        example, loaded = self.example, self.loaded
        asked = CaptureSpec(
            context=example["context"],
            question=example["question"],
            model_id=self.spec.model,
            chat_template=self.spec.chat_template,
            max_new_tokens=example["max_new_tokens"],
        )
        prompt = encode_prompt(loaded.tokenizer, asked)
        self.prompt_tokens = len(prompt.ids)
        check_length(prompt, loaded.facts, asked)
        built = [policy for policy in policies if isinstance(policy, Policy)]
        self._check_reach(built, prompt.context_length)
        model = loaded.model
        ids = torch.tensor(prompt.ids, device=model.device)[None]
        ends = set(stop_tokens(model, loaded.tokenizer))
        bases = Bases(
            model,
            ids,
            prompt.context_length,
            ends,
            split=any(compresses_first(policy) for policy in built),
            chunk=prefill_chunk(model, loaded.facts, len(prompt.ids)),
            share=not self.alone,
        )
        decoder = Decoder(
            model,
            int(example["max_new_tokens"]),
            ends,
            self.check,
            together=self.most,
            alone=self.alone,
        )
        return bases, decoder

    def _check_reach(self, policies: list[Policy], context: int) -> None:
        """A table of learned positions ends; rotary embeddings go on."""
        limit = self.loaded.facts.max_positions
        if not any("second_reading" in policy.needs for policy in policies):
            return
        if limit is not None and 2 * context > limit and not has_rotary(self.loaded.model):
            raise PromptError(
                f"A second reading would reach position {2 * context:,} and the model has "
                f"{limit:,}: take shorter prompts, or leave such policies out."
            )

    def _answered(self, decoder: Decoder, waiting: list[tuple[int, Compressed]]) -> dict[int, Row]:
        cells = [(held.cache, held.logits) for _, held in waiting]
        responses = decoder.responses(cells, self.reference)
        return {
            number: self._measured(self.cells[number], held, response)
            for (number, held), response in zip(waiting, responses, strict=True)
        }

    # --- rows ---------------------------------------------------------------------------------

    def _row(self, cell: Cell) -> Row:
        """What is known of a cell before it runs."""
        example, policy = self.example, cell.policy
        depth, length = self.facts.get("depth"), self.facts.get("length")
        options = {} if policy is None else dict(policy.choice["options"])
        return dict.fromkeys(COLUMNS) | {
            "example_id": example["example_id"],
            "task": example["task"],
            "policy": "Full cache" if policy is None else policy.name,
            "policy_key": "full" if policy is None else policy.key,
            "options": json.dumps(options, sort_keys=True),
            "ratio": 0.0 if policy is None else cell.ratio,
            "budget": cell.budget,
            "repeat": 0,
            "prompt_tokens": self.prompt_tokens,
            "simulated": False,
            "depth": float(depth) if isinstance(depth, int | float) else None,
            "length": int(length) if isinstance(length, int | float) else self.prompt_tokens,
            "facts": example["facts"],
            "seed": self.spec.seed,
        }

    def _measured(self, cell: Cell, held: Compressed, response: Response) -> Row:
        cache, plan = held.cache, held.cache.plan
        assert plan is not None
        text = self._text(response.tokens)
        agreement = self._agreement(response.tokens)
        ratio, budget = cell.ratio, plan.budget
        if cell.policy is None:
            ratio, budget = 0.0, None
        elif ratio is None:
            ratio = self._share_evicted(plan, held)
        score = agreement
        if self.answers:
            score = SCORES[self.example["scoring"]](text, self.answers)
        measures = self.spec.measures
        return self._row(cell) | {
            "ratio": ratio,
            "budget": budget,
            "response": text,
            "score": score if "score" in measures else None,
            "agreement": agreement if "agreement" in measures else None,
            "nll": float(np.mean(response.nll)) if "nll" in measures else None,
            "kl": float(np.mean(response.kl)) if "kl" in measures else None,
            "cache_bytes": held.held_bytes,
            "peak_bytes": response.peak_bytes,
            "response_tokens": len(response.tokens),
            "prefill_ms": held.prefill_ms,
            "lookahead_ms": held.lookahead_ms,
            "score_ms": held.score_ms,
            "decode_ms": sum(response.step_ms) if self.alone else None,
            "decode_ms_per_step": float(np.mean(response.step_ms)) if response.step_ms else None,
            "simulated": cache.simulated,
        }

    def _share_evicted(self, plan: Any, held: Compressed) -> float:
        """Of a budget as the catalogue means a ratio; of any other size what it came to."""
        if plan.budget is None:
            return max(0.0, 1 - held.held_bytes / self.full_bytes)
        length = plan.shape.ranked
        if not isinstance(plan.schedule, AfterPrefill | Sliding):
            length = plan.shape.prompt_length + len(self.reference.tokens)
        return max(0.0, 1 - plan.budget / length)

    def _text(self, tokens: list[int]) -> str:
        return str(self.loaded.tokenizer.decode(tokens, skip_special_tokens=True))

    def _agreement(self, tokens: list[int]) -> float:
        """Share of the longer response's steps with the same token as the full cache."""
        other = self.reference.tokens
        equal = sum(one == two for one, two in zip(tokens, other, strict=False))
        return equal / max(1, len(tokens), len(other))
