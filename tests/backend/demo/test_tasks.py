"""The generators, checked by reading their text again without their code."""

import json
import random
import re
import subprocess
import sys
from itertools import pairwise

import pytest

from backend.demo import tasks

OPTIONS: list[tuple[str, dict[str, int]]] = [
    ("passkey", {"digits": 4}),
    ("passkey", {"digits": 64}),
    ("needle", {"keys": 8}),
    ("needle", {"keys": 9, "questions": 3}),
    ("trace", {"hops": 1, "chains": 3}),
    ("trace", {"hops": 3}),
    ("arithmetic", {"steps": 12}),
    ("arithmetic", {"steps": 18, "items": 3}),
]
SEEDS = range(20)


def solve(sample: tasks.Sample) -> str:
    """The wanted value(s), worked out from the prompt's text alone."""
    context, question = sample.context, sample.question
    if sample.task == "passkey":
        return re.findall(r"passkey is (\d+)", context)[0]
    if sample.task == "needle":
        codes = dict(re.findall(r"code of the (\w+) is (\d+)", context))
        return " ".join(codes[name] for name in re.findall(r"the (?!codes? )(\w+)", question))
    if sample.task == "trace":
        links = dict(re.findall(r"value of (\w+) is (?:the value of )?(\w+)\.", context))
        name = re.findall(r"value of (\w+)\?", question)[0]
        while not name.isdigit():
            name = links[name]
        return name
    counts = {name: int(n) for name, n in re.findall(r"number of (\w+) is (\d+)", context)}
    total = int(re.findall(r"Begin with (\d+)", question)[0])
    for order, name in re.findall(r"Step [A-Z] (add|take) (\w+)", question):
        total += counts[name] if order == "add" else -counts[name]
        assert 0 <= total < 100
    return str(total)


def stated(sample: tasks.Sample) -> str:
    """The value(s) that the sample's own answer states."""
    if sample.task == "needle":
        return " ".join(re.findall(r"is (\d+)", sample.answer))
    return re.findall(r"\d+", sample.answer)[-1]


@pytest.mark.parametrize(("task", "options"), OPTIONS)
def test_answer_follows_from_the_text(task: str, options: dict[str, int]) -> None:
    for seed in SEEDS:
        sample = tasks.sample(task, rng=random.Random(seed), filler=12, **options)
        assert solve(sample) == stated(sample)


def test_every_worked_line_is_true() -> None:
    sample = tasks.sample("arithmetic", rng=random.Random(5), filler=3, steps=18)
    lines = re.findall(r"So (\d+) ([+-]) (\d+) = (\d+)\.", sample.answer)
    assert len(lines) == 18
    for left, sign, right, after in lines:
        assert int(left) + (1 if sign == "+" else -1) * int(right) == int(after)
    assert all(line[3] == following[0] for line, following in pairwise(lines))


@pytest.mark.parametrize(("task", "options"), OPTIONS)
def test_evidence_is_the_facts_the_answer_rests_on(task: str, options: dict[str, int]) -> None:
    for seed in SEEDS:
        sample = tasks.sample(task, rng=random.Random(seed), filler=12, **options)
        assert sample.evidence
        for start, end in sample.evidence:
            assert end <= sample.context_end
            fact = sample.prompt[start:end]
            assert fact.startswith("The ") and fact.endswith(".")
            assert fact in sample.answer
        assert sample.prompt[sample.context_end :].startswith("\nQuestion: ")


def test_trace_needs_a_fact_for_every_hop() -> None:
    sample = tasks.sample("trace", rng=random.Random(0), filler=5, hops=3)
    assert len(sample.evidence) == 4  # three references and the number


@pytest.mark.parametrize("task", tasks.TASKS)
@pytest.mark.parametrize("tokens", [400, 2000])
def test_prompt_is_as_long_as_asked(task: str, tokens: int) -> None:
    longest_sentence = 25
    for seed in range(5):
        sample = tasks.sample(task, rng=random.Random(seed), tokens=tokens)
        assert tokens - longest_sentence < tasks.count_tokens(sample.prompt) <= tokens


def test_too_short_a_length_is_refused() -> None:
    with pytest.raises(ValueError, match="more than the 20 asked"):
        tasks.sample("needle", rng=random.Random(0), tokens=20)


@pytest.mark.parametrize("task", tasks.TASKS)
def test_seed_decides_the_sample(task: str) -> None:
    first, again, other = (
        tasks.sample(task, rng=random.Random(seed), tokens=500) for seed in (3, 3, 4)
    )
    assert first == again
    assert first != other


def test_tasks_need_no_torch() -> None:
    code = "import sys, backend.demo.tasks; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_shipped_samples_are_whole() -> None:
    path = tasks.TOKENIZER_FILE.parent / "samples" / "samples.json"
    samples = json.loads(path.read_text())
    assert {s["task"] for s in samples} == set(tasks.TASKS)
    assert sum(s["first_start"] for s in samples) == 3
    for s in samples:
        prompt = s["context"] + s["question"]
        assert 200 <= tasks.count_tokens(prompt) <= 2000
        assert tasks.count_tokens(s["answer"]) < s["max_new_tokens"]
        assert all(prompt[start:end] in s["answer"] for start, end in s["evidence"])
    long = max(samples, key=lambda s: tasks.count_tokens(s["answer"]))
    assert long["task"] == "arithmetic" and tasks.count_tokens(long["answer"]) >= 300
