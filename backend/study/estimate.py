"""What a study will take, before it starts: cells, seconds and memory, without torch."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from backend.admission import AdmissionError, available_memory
from backend.costs import Facts, memory_parts, time_parts
from backend.models import model_facts
from backend.study.sets import read_set
from backend.study.spec import StudySpec, TaskSpec
from backend.study.tasks import find
from kvpolicies.methods import catalogue

TOGETHER = 64  # caches that share a forward
TOGETHER_BYTES = 2_000_000_000  # of their keys and values, were none evicted

CHARACTERS_PER_TOKEN = 3.5
LONGEST_TOKEN = 8  # characters, on average over a prompt: no tokenizer does better on text
SPECIMENS = 8  # drafts of a task whose answers are measured
# Shares of a prefill and of a decoded token, measured on the embedded model on two cores.
COMPRESSION = 0.03  # scoring and evicting one cell
READING_AGAIN = 3.0  # the context's second copy, and scoring through it
SHARED_STEP = 0.25  # one more cache in a forward of several
READS_AGAIN = ("context_attention", "reconstruction")


@dataclass(frozen=True)
class StudyEstimate:
    """What a study will take on this machine, one prompt after the other."""

    examples: int
    cells: int
    seconds: float
    memory_bytes: int
    available_memory: int
    prompt_tokens: int  # of the longest prompt
    too_long: str = ""  # why prompts do not fit the model's context

    @property
    def words(self) -> str:
        return (
            f"{self.examples:,} prompts of at most {self.prompt_tokens:,} tokens, {self.cells:,} "
            f"cells; about {duration(self.seconds)} and {self.memory_bytes / 1e6:,.0f} MB of memory"
        )

    @property
    def refusals(self) -> tuple[str, ...]:
        """Sentences that say why it cannot run; none when it can."""
        if self.too_long:
            return (self.too_long,)
        if self.memory_bytes <= self.available_memory:
            return ()
        return (
            f"The study needs about {self.memory_bytes / 1e9:.3g} GB of memory, "
            f"{self.available_memory / 1e9:.3g} GB are there for it: use shorter prompts or a "
            "smaller model, or close other programs.",
        )

    def check(self) -> None:
        """Raises AdmissionError with the first reason why the study cannot start."""
        if self.refusals:
            raise AdmissionError(self.refusals[0])


def estimate(
    spec: StudySpec, sets: Mapping[str, bytes] | None = None, facts: Facts | None = None
) -> StudyEstimate:
    """Cells, seconds and bytes of a study; `sets` are the files it names.

    Raises PromptError for a set that cannot be read, ModelError without `facts` of the model.
    """
    facts = facts or model_facts(spec.model, spec.revision)
    prompts = list(_lengths(spec, sets or {}))
    per_example = len(spec.cells())
    width = 4 if spec.dtype in ("auto", "float32") else 2
    seconds, most, longest = 0.0, 0, 0
    known: dict[tuple[int, int], tuple[float, int]] = {}
    for length, answer in prompts:
        if (length, answer) not in known:
            known[length, answer] = _one(spec, facts, length, answer, width)
        took, size = known[length, answer]
        seconds, most, longest = seconds + took, max(most, size), max(longest, length)
    start = time_parts(facts, 1, 1, width, 0)["load the model"]
    return StudyEstimate(
        len(prompts),
        len(prompts) * per_example,
        start + seconds,
        most,
        available_memory(),
        longest,
        _too_long(spec, sets or {}, facts.max_positions),
    )


def duration(seconds: float) -> str:
    """In the largest unit that leaves a readable number."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(1, seconds):.0f} s"


def together(full_bytes: int, cells: int = TOGETHER) -> int:
    """How many cells of a prompt are held and decoded at once."""
    return max(1, min(TOGETHER, cells, TOGETHER_BYTES // max(1, full_bytes)))


def _one(spec: StudySpec, facts: Facts, length: int, answer: int, width: int) -> tuple[float, int]:
    """Seconds and bytes of one prompt."""
    cells = spec.cells()[1:]
    times = time_parts(facts, length, answer, width, 0)
    prefill, decode = times["read the prompt"], times["write the answer"]
    scores = [_score(cell.choice) for cell in cells]
    again = any(score in READS_AGAIN for score in scores)
    drafts = sum(score == "lookahead_attention" for score in scores)
    passes = 2 if {"nll", "kl"} & set(spec.measures) else 1
    share = 1.0 if "latency" in spec.measures else SHARED_STEP
    seconds = prefill * (1 + COMPRESSION * len(cells) + READING_AGAIN * again)
    seconds += decode * (1 + passes * share * len(cells))
    seconds += decode / max(1, answer) * 8 * drafts  # tokens of a lookahead
    memory = memory_parts(facts, length, answer, width, 0)
    entry = 2 * facts.layers * facts.kv_heads * facts.head_dim * width
    queries = facts.layers * facts.query_heads * facts.head_dim * width * length
    held = entry * (length + answer) * together(entry * length, len(cells))
    return seconds, sum(memory.values()) + queries * (2 if again else 1) + held


def _score(choice: Mapping[str, Any]) -> str:
    return catalogue()[choice["key"]].score if "key" in choice else str(choice["score"])


def _lengths(spec: StudySpec, sets: Mapping[str, bytes]) -> Iterator[tuple[int, int]]:
    """Tokens of each prompt and of its answer; those of a set from its characters."""
    for task in spec.tasks:
        if task.set:
            data = sets.get(task.set)
            for example in read_set(data, task.set)[: task.count] if data else []:
                size = len(example.context) + len(example.question)
                answer = task.max_new_tokens or example.max_new_tokens
                yield round(size / CHARACTERS_PER_TOKEN), answer
        else:
            answer = task.max_new_tokens or _answer(task, spec.seed)
            depths = max(1, len(task.options.get("depth", [])))
            for length in task.options["length"]:
                yield from [(length, answer)] * (task.count or 0) * depths


def _too_long(spec: StudySpec, sets: Mapping[str, bytes], limit: int | None) -> str:
    """Which prompts cannot fit the model's context, in a sentence; "" where some of each may.

    A set's tokens are only known when it is read: it is refused when all of its prompts are too
    long even at LONGEST_TOKEN characters a token.
    """
    if limit is None:
        return ""
    for task in spec.tasks:
        if not task.set:
            answer = task.max_new_tokens or _answer(task, spec.seed)
            length = max(task.options["length"])
            if length + answer > limit:
                return (
                    f"Prompts of {length:,} tokens with answers of about {answer:,} exceed the "
                    f"model's context of {limit:,}: give shorter lengths or choose a model with a "
                    "longer context."
                )
        elif data := sets.get(task.set):
            rows = read_set(data, task.set)[: task.count]
            sizes = [len(row.context) + len(row.question) for row in rows]
            if min(sizes) / LONGEST_TOKEN > limit:
                return (
                    f"Every prompt of {task.set} exceeds the model's context of {limit:,} tokens "
                    f"(the shortest has {min(sizes):,} characters): give shorter ones or choose a "
                    "model with a longer context."
                )
    return ""


def _answer(task: TaskSpec, seed: int) -> int:
    """Tokens of a task's answer, from a few drafts of it."""
    rng = random.Random(seed)
    options = {**task.options, "depth": None}
    drafts = [find(task.task).draft(rng, options) for _ in range(SPECIMENS)]
    return max(round(len(draft.worked) / 2) + draft.slack for draft in drafts)
