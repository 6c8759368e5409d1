"""Writes the sample prompts that ship with the embedded model: `python -m backend.demo.samples`."""

import json
import random

from backend.demo import tasks

# id, title, task, options, prompt tokens, new tokens, what to look for, captured at first start
ROWS: list[tuple[str, str, str, dict[str, int], int, int, str, bool]] = [
    (
        "passkey-7",
        "Passkey of 7 digits",
        "passkey",
        {"digits": 7},
        600,
        24,
        "While the number is written, one or two heads move along the digits in the notes.",
        True,
    ),
    (
        "passkey-7-far",
        "Passkey of 7 digits in 2,000 tokens",
        "passkey",
        {"digits": 7},
        2000,
        24,
        "The same heads as in the short passkey, over a three times longer distance.",
        False,
    ),
    (
        "passkey-64",
        "Passkey of 64 digits",
        "passkey",
        {"digits": 64},
        1000,
        80,
        "A diagonal line: every generated digit looks at its place in the notes.",
        False,
    ),
    (
        "needle-8",
        "One of eight codes",
        "needle",
        {"keys": 8},
        900,
        32,
        "All eight codes look alike; which head picks the one that was asked for?",
        True,
    ),
    (
        "needle-8-three",
        "Three of eight codes",
        "needle",
        {"keys": 8, "questions": 3},
        1500,
        64,
        "The attention jumps to another place in the notes when the next code begins.",
        False,
    ),
    (
        "needle-12",
        "One of twelve codes in 2,000 tokens",
        "needle",
        {"keys": 12},
        2000,
        32,
        "Eleven codes will never be needed: tokens a policy may forget, if it knew.",
        False,
    ),
    (
        "trace-3",
        "Three hops to a number",
        "trace",
        {"hops": 3},
        1000,
        64,
        "Each sentence of the answer names the variable that the next one has to look up.",
        False,
    ),
    (
        "trace-4",
        "Four hops in 2,000 tokens",
        "trace",
        {"hops": 4},
        2000,
        72,
        "A fact is ignored until the hop before it has been written, then it matters at once.",
        False,
    ),
    (
        "arithmetic-6",
        "Worked arithmetic of 6 steps",
        "arithmetic",
        {"steps": 6, "items": 3},
        250,
        200,
        "A count in the notes is looked up again each time its goods return.",
        True,
    ),
    (
        "arithmetic-14",
        "Long worked arithmetic of 14 steps",
        "arithmetic",
        {"steps": 14, "items": 6},
        1500,
        440,
        "Tokens go cold for a hundred steps and are needed again: recurrence over time.",
        False,
    ),
]


def main() -> None:
    written = []
    for name, title, task, options, tokens, new_tokens, look_for, first_start in ROWS:
        sample = tasks.sample(task, rng=random.Random(name), tokens=tokens, **options)
        written.append(
            {
                "id": name,
                "title": title,
                "task": task,
                "context": sample.context,
                "question": sample.question,
                "answer": sample.answer,
                "evidence": sample.evidence,
                "max_new_tokens": new_tokens,
                "look_for": look_for,
                "first_start": first_start,
            }
        )
    folder = tasks.TOKENIZER_FILE.parent / "samples"
    folder.mkdir(exist_ok=True)
    (folder / "samples.json").write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
