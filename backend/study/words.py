"""What each task of `backend.study.tasks` hides and asks, before the filler.

Facts are those of the embedded model's own tasks wherever it knows the task; "english" frames them
with an instruction and begins the answer, as RULER does.
"""

from __future__ import annotations

# ruff: noqa: SIM905 (word lists read best as text)
import random
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from string import ascii_lowercase
from typing import Any

from backend.demo import tasks as demo
from backend.demo.tasks import ITEMS, KEYS, VARIABLES, filler_sentence, number
from backend.study.filling import Draft

__all__ = [
    "KEYS",
    "LIMITS",
    "arithmetic",
    "common_words",
    "frequent_words",
    "multi_key",
    "multi_value",
    "passkey",
    "variable_tracing",
]

Options = Mapping[str, Any]

OPENING = "The notes below hold facts among everyday sentences. A question about them follows."
ENGLISH = "\n\nQuestion: {}\nAnswer:{}"
ADJECTIVES = (
    "amber ancient bitter blue brave bright calm clever cold crisp curious damp dark deep "
    "distant dry dusty early faint fancy fast fierce fine flat fresh gentle golden grand grey "
    "happy heavy hollow honest humble icy jolly keen kind late lively lonely loud lucky mellow "
    "mild misty noble odd old pale plain polite proud pure quick quiet rapid rare red rough "
    "round rusty sharp shiny silent silver simple slow small smooth soft solid sour steady "
    "steep stiff still strange strong sunny sweet swift tall tame thick thin tidy tiny vast "
    "warm weary white wide wild wise young"
).split()


def _spread(rng: random.Random, pieces: int) -> list[float]:
    return sorted(rng.random() for _ in range(pieces))


def _placed(
    rng: random.Random, pieces: list[str], asked: list[int], depth: float | None
) -> tuple[tuple[str, ...], tuple[float, ...], tuple[int, ...]]:
    """Pieces in the order of the text, their places and the indices of the asked ones. With a
    depth, the first asked piece stands there."""
    places = [rng.random() for _ in pieces]
    if depth is not None:
        places[asked[0]] = depth
    order = sorted(range(len(pieces)), key=lambda i: places[i])
    return (
        tuple(pieces[i] for i in order),
        tuple(places[i] for i in order),
        tuple(order.index(i) for i in asked),
    )


def _framed(options: Options, question: str, begun: str) -> tuple[str, str]:
    """Opening and question in the wording asked for; `begun` starts the answer in English."""
    if options["wording"] == "demo":
        return demo.OPENING, demo.QUESTION.format(question)
    return OPENING, ENGLISH.format(question, begun)


def passkey(rng: random.Random, options: Options) -> Draft:
    part = demo.passkey(rng, digits=options["digits"])
    pieces, places, evidence = _placed(rng, part.facts, [0], options["depth"])
    opening, question = _framed(options, part.exercises[0].question, " The passkey is")
    answer = part.facts[0].removeprefix("The passkey is ").rstrip(".")
    worked = part.exercises[0].answer
    return Draft(opening, pieces, places, question, (answer,), worked, filler_sentence, evidence)


def multi_key(rng: random.Random, options: Options) -> Draft:
    part = demo.needle(
        rng, keys=options["keys"], digits=options["digits"], questions=options["questions"]
    )
    exercise = part.exercises[0]
    pieces, places, evidence = _placed(rng, part.facts, list(exercise.facts), options["depth"])
    opening, question = _framed(
        options, exercise.question, "" if options["questions"] > 1 else _begun(exercise.answer)
    )
    answers = tuple(part.facts[i].rpartition(" ")[2].rstrip(".") for i in exercise.facts)
    return Draft(
        opening,
        pieces,
        places,
        question,
        answers,
        exercise.answer,
        filler_sentence,
        evidence,
    )


def _begun(answer: str) -> str:
    """A worked answer without its last word."""
    return answer.rpartition(" ")[0]


def multi_value(rng: random.Random, options: Options) -> Draft:
    places = rng.sample(KEYS, options["keys"])
    codes = [number(rng, options["digits"]) for _ in range(options["values"])]
    facts = [f"One code of the {places[0]} is {code}." for code in codes]
    facts += [
        f"One code of the {place} is {number(rng, options['digits'])}." for place in places[1:]
    ]
    pieces, at, evidence = _placed(rng, facts, list(range(len(codes))), None)
    question = ENGLISH.format(
        f"What are all the codes of the {places[0]}?", f" The codes of the {places[0]} are"
    )
    worked = f" {', '.join(codes)}."
    return Draft(
        OPENING, pieces, at, question, tuple(codes), worked, filler_sentence, evidence, slack=24
    )


def variable_tracing(rng: random.Random, options: Options) -> Draft:
    hops, chains = options["hops"], options["chains"]
    if options["wording"] == "demo":
        part = demo.trace(rng, hops=hops, chains=chains, digits=options["digits"])
        exercise = part.exercises[0]
        answer = exercise.answer.rpartition(" ")[2].rstrip(".")
        return Draft(
            demo.OPENING,
            tuple(part.facts),
            tuple(_spread(rng, len(part.facts))),
            demo.QUESTION.format(exercise.question),
            (answer,),
            exercise.answer,
            filler_sentence,
            exercise.facts,
        )
    # RULER asks for every variable that ends up with a value; facts of a chain stand in order
    names = rng.sample(VARIABLES, chains * (hops + 1))
    facts: list[tuple[float, int, str]] = []
    for chain in range(chains):
        own = names[chain * (hops + 1) : (chain + 1) * (hops + 1)]
        value = number(rng, options["digits"])
        if chain == 0:
            asked = value
        lines = [f"The value of {own[0]} is {value}."]
        lines += [f"The value of {name} is the value of {of}." for of, name in pairwise(own)]
        facts += zip(_spread(rng, len(lines)), [chain] * len(lines), lines, strict=True)
    facts.sort()
    evidence = tuple(i for i, (_, chain, _line) in enumerate(facts) if chain == 0)
    answers = tuple(names[: hops + 1])
    question = ENGLISH.format(
        f"Which variables have the value {asked}, directly or through others?",
        f" The {hops + 1} variables with the value {asked} are",
    )
    return Draft(
        OPENING,
        tuple(line for _, _, line in facts),
        tuple(place for place, _, _ in facts),
        question,
        answers,
        f" {', '.join(answers)}.",
        filler_sentence,
        evidence,
        slack=24,
    )


def arithmetic(rng: random.Random, options: Options) -> Draft:
    part = demo.arithmetic(rng, steps=options["steps"], items=options["items"])
    exercise = part.exercises[0]
    opening, question = _framed(
        options,
        exercise.question
        if options["wording"] == "demo"
        else f"{exercise.question} Work through the steps one by one, look up how many are added "
        "or taken, and end with 'The result is' and the number.",
        "",
    )
    worked = exercise.answer
    return Draft(
        opening,
        tuple(part.facts),
        tuple(_spread(rng, len(part.facts))),
        question,
        (f"The result is {worked.rpartition(' ')[2].rstrip('.')}.",),
        worked,
        filler_sentence,
        exercise.facts,
        slack=8 if options["wording"] == "demo" else 200,
    )


def _pair(rng: random.Random, taken: set[str] | None = None) -> str:
    """Two words joined by a hyphen, none of `taken`, which it joins."""
    while True:
        word = f"{rng.choice(ADJECTIVES)}-{rng.choice(KEYS + ITEMS)}"
        if taken is None or word not in taken:
            break
    if taken is not None:
        taken.add(word)
    return word


def common_words(rng: random.Random, options: Options) -> Draft:
    taken: set[str] = set()
    common = [_pair(rng, taken) for _ in range(options["common"])]
    pieces = [word for word in common for _ in range(options["repeats"])]
    rng.shuffle(pieces)
    chosen = frozenset(common)
    count = len(common)
    return Draft(
        "",
        tuple(pieces),
        tuple(_spread(rng, len(pieces))),
        ENGLISH.format(
            f"What are the {count} most common words in the list above?",
            f" The {count} words that occur most often are",
        ),
        tuple(common),
        f" {', '.join(common)}.",
        partial(_other_pair, chosen=chosen),
        slack=24,
        join=_numbered,
    )


def _other_pair(rng: random.Random, chosen: frozenset[str]) -> str:
    return next(word for word in iter(lambda: _pair(rng), None) if word not in chosen)


def _numbered(items: list[str]) -> str:
    listed = " ".join(f"{i}. {word}" for i, word in enumerate(items, start=1))
    return f"Some words of the numbered list below occur more often than others.\n{listed}"


def frequent_words(rng: random.Random, options: Options) -> Draft:
    """Counts fall as 1 / rank²; ranks 1 to 3 are asked for, rank 4 and later are distractors, and
    dots, RULER's noise, fill the text."""
    coded: list[str] = []
    while len(coded) < 8:
        word = "".join(rng.choices(ascii_lowercase, k=options["letters"]))
        if word not in coded:
            coded.append(word)
    # RULER gives the dots rank 1, so the words begin with rank 2
    counts = [max(1, round(64 / rank**2)) for rank in range(2, len(coded) + 2)]
    pieces = [word for word, count in zip(coded, counts, strict=True) for _ in range(count)]
    rng.shuffle(pieces)
    return Draft(
        "The coded text below holds made-up words, some of them more often than others.\n",
        tuple(pieces),
        tuple(_spread(rng, len(pieces))),
        ENGLISH.format(
            "Which three made-up words occur most often in the coded text? Ignore the dots.",
            " The three words that occur most often are",
        ),
        tuple(coded[:3]),
        f" {', '.join(coded[:3])}.",
        _dots,
        slack=24,
    )


def _dots(rng: random.Random) -> str:
    return rng.choice((".", "..", "...", "... ..."))


def _key_limit(options: Options) -> str:
    if options["questions"] > options["keys"]:
        return f"{options['questions']} codes are asked for and only {options['keys']} places exist"
    return ""


def _chain_limit(options: Options) -> str:
    names = options["chains"] * (options["hops"] + 1)
    if names > len(VARIABLES):
        return f"{names} variables are needed and there are names for {len(VARIABLES)}"
    return ""


# a reason why options do not go together, or ""
LIMITS: dict[str, Callable[[Options], str]] = {
    "multi_key": _key_limit,
    "variable_tracing": _chain_limit,
}
