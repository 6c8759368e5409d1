"""Training documents: several parts of `backend.demo.tasks` in one text, several questions each.

A document is cut to an exact number of tokens. Every token carries a loss weight: 1 on answers,
little on a thinned-out rest, 0 on padding.
"""

import random
from string import ascii_uppercase

import numpy as np
from tokenizers import Tokenizer

from backend.demo import tasks

REST_WEIGHT, REST_SHARE = 0.3, 0.1  # every tenth token outside answers counts 0.3: 0.03 on average

Mix = dict[tuple[int, str], float]  # (length, kind) -> probability

# By the share of training done so far. Density first, length later:
# association is learned on lists where everything is asked, then carried over distance within
# few tokens; worked arithmetic needs its own share to the end.
STAGES: list[tuple[float, Mix]] = [
    (0.1, {(128, "repeat"): 0.3, (256, "repeat"): 0.5, (256, "dense"): 0.2}),
    (0.41, {(256, "repeat"): 0.06, (128, "dense"): 0.24, (256, "dense"): 0.6, (512, "dense"): 0.1}),
    (
        0.54,
        {(256, "dense"): 0.1, (512, "worked"): 0.35, (512, "mixed"): 0.2, (1024, "mixed"): 0.35},
    ),
    (
        0.92,
        {
            (256, "dense"): 0.03,
            (512, "worked"): 0.5,
            (1024, "mixed"): 0.2,
            (2048, "mixed"): 0.25,
            (4096, "mixed"): 0.02,
        },
    ),
    (
        1.0,
        {
            (512, "worked"): 0.15,
            (2560, "worked"): 0.65,
            (2560, "mixed"): 0.2,
        },
    ),
]


# What follows on finished weights (`--start`): all tasks at length.
POLISH: list[tuple[float, Mix]] = [
    (
        1.0,
        {
            (256, "dense"): 0.05,
            (512, "worked"): 0.05,
            (1024, "worked"): 0.1,
            (2560, "worked"): 0.2,
            (1024, "mixed"): 0.2,
            (2560, "mixed"): 0.4,
        },
    )
]


def stage(progress: float, stages: list[tuple[float, Mix]]) -> Mix:
    return next(mix for end, mix in stages if progress <= end)


def part_for(task: str, room: int, rng: random.Random) -> tasks.Part | None:
    """A part of random size whose facts and exercises take about `room` tokens at most."""
    if task == "passkey":
        most = min(64, (room - 26) // 2)
        digits = rng.choice([rng.randint(4, 12), rng.randint(4, 64), rng.randint(32, 64)])
        return tasks.passkey(rng, digits=min(digits, most)) if most >= 4 else None
    if task == "needle":
        digits = rng.randint(4, 8)
        most = min(12, room // (38 + 2 * digits - 5))
        if most < 2:
            return None
        keys = rng.randint(min(most, 3), most)
        questions = min(rng.choice([1, 1, 1, 2, 3]), keys)
        return tasks.needle(rng, keys=keys, digits=digits, questions=questions)
    if task == "trace":
        hops = min(rng.randint(1, 4), (room - 46) // 20)
        if hops < 1:
            return None
        chains = rng.randint(1, min(4, room // (46 + 20 * hops)))
        return tasks.trace(rng, hops=hops, chains=chains, digits=rng.randint(4, 6))
    items = rng.randint(2, 8)
    most = min(18, (room - 8 * items - 30) // 37)
    if most < 2:
        return None
    steps = rng.randint(rng.choice([2, max(2, most - 6)]), most)
    first = rng.choice([0, rng.randint(0, len(ascii_uppercase) - steps)])
    return tasks.arithmetic(rng, steps=steps, items=items, first=first)


def document(length: int, kind: str, tokenizer: Tokenizer, rng: random.Random) -> tuple[list, list]:
    """Token ids and loss weights, `length` of each."""
    if kind == "repeat":
        return repeated(length, tokenizer.get_vocab_size(), rng)
    count = rng.randint(1, 4) if kind == "mixed" else 4
    room = int(length * rng.uniform(0.25, 0.8)) if kind == "mixed" else length - 12
    share = room // count if kind == "mixed" else room
    weights_by_task = [0, 0, 0, 1] if kind == "worked" else [3, 3, 2, 5]
    names = rng.choices(list(tasks.TASKS), weights=weights_by_task, k=2 * count)
    kept: list[tasks.Part] = []
    for name in dict.fromkeys(names):
        part = part_for(name, min(room, share), rng)
        if part is not None:
            kept.append(part)
            room -= cost(part, tokenizer)
    facts = [fact for part in kept for fact in part.facts]
    rng.shuffle(facts)
    exercises = [exercise for part in kept for exercise in part.exercises]
    rng.shuffle(exercises)

    turns: list[tuple[list[int], list[int]]] = []
    space = length - len(encode(tokenizer, " ".join([tasks.OPENING, *facts])))
    for exercise in exercises:
        question = encode(tokenizer, tasks.QUESTION.format(exercise.question))
        answer = [*encode(tokenizer, exercise.answer), 0]  # 0: end of text closes every answer
        if len(question) + len(answer) > space:
            break
        space -= len(question) + len(answer)
        turns.append((question, answer))
    # Of any length: in documents that are always full, a place in the text would tell which step it
    # is and whether it is the last, and the model would learn that instead of reading the orders.
    filler = int(space * rng.uniform(0.3, 1))
    sentences = tasks.filler_sentences(filler, rng) if kind != "dense" else []
    context, _ = tasks.hide(facts, sentences, rng)

    ids = encode(tokenizer, context)
    weights = rest(len(ids), rng)
    for question, answer in turns:
        ids += question + answer
        weights += rest(len(question), rng) + [1.0] * len(answer)
    ids, weights = ids[:length], weights[:length]
    padding = length - len(ids)
    return ids + [0] * padding, weights + [0.0] * padding


def cost(part: tasks.Part, tokenizer: Tokenizer) -> int:
    """Tokens a part takes when everything in it is asked."""
    asked = [tasks.QUESTION.format(e.question) + e.answer for e in part.exercises]
    return len(encode(tokenizer, "".join([*part.facts, *asked])))


def repeated(length: int, vocabulary: int, rng: random.Random) -> tuple[list[int], list[float]]:
    """A random string over and over; half of them made of few symbols, like long numbers."""
    period = rng.randint(16, length // 2)
    symbols = rng.sample(range(1, vocabulary), 10 if rng.random() < 0.5 else 300)
    ids = (rng.choices(symbols, k=period) * (length // period + 1))[:length]
    return ids, [0.0] * period + [1.0] * (length - period)


def rest(count: int, rng: random.Random) -> list[float]:
    return [REST_WEIGHT if rng.random() < REST_SHARE else 0.0 for _ in range(count)]


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text).ids


def batch(tokenizer: Tokenizer, tokens: int, mix: Mix, seed: str) -> tuple[np.ndarray, np.ndarray]:
    """Ids and weights [documents, length], `tokens` in all; a seed always gives the same batch."""
    rng = random.Random(seed)
    (length, kind) = rng.choices(list(mix), weights=list(mix.values()))[0]
    made = [document(length, kind, tokenizer, rng) for _ in range(max(1, tokens // length))]
    ids, weights = zip(*made, strict=True)
    return np.array(ids, dtype=np.int64), np.array(weights, dtype=np.float32)
