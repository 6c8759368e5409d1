"""Measures the embedded model on held-out prompts: `python -m backend.demo.evaluate`.

Every figure is that of greedy decoding over the full cache, in float32 on the CPU. Where every
token of the right answer is the most probable one given those before it, greedy decoding gives
exactly that answer and generation is skipped; otherwise the answer is generated.
"""

import argparse
import random
import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from backend.demo import tasks

Score = Callable[[str, str], float]  # (generated, right answer) -> 0..1


def exact(generated: str, answer: str) -> float:
    return float(generated == answer)


def digits_right(generated: str, answer: str) -> float:
    """Share of the answer's digits that stand at their place."""
    wanted, got = re.sub(r"\D", "", answer), re.sub(r"\D", "", generated)
    return sum(a == b for a, b in zip(wanted, got, strict=False)) / len(wanted)


def result_right(generated: str, answer: str) -> float:
    """Whether the final result of worked arithmetic is right, whatever the working."""
    found = re.findall(r"The result is (\d+)\.", generated)
    return float(bool(found) and answer.endswith(f"The result is {found[-1]}."))


ROWS: list[tuple[str, str, dict[str, int], Score]] = [
    ("7-digit passkey, exact", "passkey", {"digits": 7}, exact),
    ("64-digit passkey, digits right", "passkey", {"digits": 64}, digits_right),
    ("8-key needle, exact", "needle", {"keys": 8}, exact),
    ("8-key needle, 3 questions, exact", "needle", {"keys": 8, "questions": 3}, exact),
    ("three-hop tracing, exact", "trace", {"hops": 3}, exact),
    ("worked arithmetic of 12 steps, result", "arithmetic", {"steps": 12}, result_right),
]


@torch.inference_mode()
def teacher_forced(
    model: LlamaForCausalLM, tokenizer: Tokenizer, sample: tasks.Sample
) -> np.ndarray:
    """Whether each answer token (end of text included) is the most probable one given the answer
    so far, [answer tokens]. All true if and only if greedy decoding gives exactly the answer.
    """
    prompt = tokenizer.encode(sample.prompt).ids
    answer = [*tokenizer.encode(sample.answer).ids, 0]
    ids = torch.tensor([prompt + answer], device=model.device)
    logits = model(ids[:, :-1], logits_to_keep=len(answer)).logits[0]  # [answer, vocabulary]
    return (logits.argmax(-1) == ids[0, -len(answer) :]).cpu().numpy()


@torch.inference_mode()
def greedy_answer(model: LlamaForCausalLM, tokenizer: Tokenizer, sample: tasks.Sample) -> str:
    """What greedy decoding gives, up to 1.2 times the right answer's length."""
    if teacher_forced(model, tokenizer, sample).all():
        return sample.answer
    ids = torch.tensor([tokenizer.encode(sample.prompt).ids], device=model.device)
    limit = int(1.2 * len(tokenizer.encode(sample.answer).ids)) + 4
    generated = model.generate(  # type: ignore[misc]  # its self is typed as a protocol
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=limit, do_sample=False
    )
    return tokenizer.decode(generated[0, ids.shape[1] :].tolist())


def held_out(task: str, prompts: int, tokens: int, options: dict[str, int]) -> list[tasks.Sample]:
    """Prompts of about `tokens` tokens; training never uses these seeds."""
    rng = random.Random(f"held out {task} {tokens} {sorted(options.items())}")
    return [tasks.sample(task, rng=rng, tokens=tokens, **options) for _ in range(prompts)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=tasks.TOKENIZER_FILE.parent)
    parser.add_argument("--prompts", type=int, default=100, help="per task and length")
    parser.add_argument("--tokens", type=int, nargs="+", default=[2000], help="prompt lengths")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model = LlamaForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).eval()
    tokenizer = Tokenizer.from_file(str(tasks.TOKENIZER_FILE))

    started = time.monotonic()
    print("| Task |" + "".join(f" {tokens:,} tokens |" for tokens in arguments.tokens))
    print("|:--|" + "--:|" * len(arguments.tokens))
    for title, task, options, score in ROWS:
        print(f"| {title} |", end="", flush=True)
        for tokens in arguments.tokens:
            samples = held_out(task, arguments.prompts, tokens, options)
            scores = [score(greedy_answer(model, tokenizer, s), s.answer) for s in samples]
            print(f" {100 * sum(scores) / len(scores):.1f} % |", end="", flush=True)
        print()
    print(f"\n{arguments.prompts} prompts a cell, {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
