"""Generated tasks with known answers: passkeys, needles, variable tracing, worked arithmetic.

Every task is a `Part`: facts to hide in a text and exercises about them. `sample` hides one part
in filler and asks one exercise; the training documents of `backend.demo.train` mix several parts
and ask several exercises. Nothing here imports torch.
"""

# ruff: noqa: SIM905 (word lists read best as text)
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from string import ascii_uppercase

TOKENIZER_FILE = Path(__file__).parents[2] / "models" / "demo" / "tokenizer.json"

OPENING = "Here are some notes."
QUESTION = "\nQuestion: {}\nAnswer:"

# Words that can carry a code; none of them is used by another task.
KEYS = (
    "market harbor garden bridge tower castle forest island museum library station theater "
    "temple palace hotel bakery school clinic stadium airport factory farm mill mine lake river "
    "valley desert canyon beach cabin cellar chapel tunnel depot dock gallery kitchen office "
    "studio workshop barn fountain orchard prison bank tavern lighthouse monastery quarry"
).split()
VARIABLES = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho "
    "sigma tau upsilon phi chi psi omega"
).split()
ITEMS = (
    "apples pears plums figs grapes lemons melons peaches cherries dates limes mangoes olives "
    "onions carrots beans nuts eggs cakes loaves"
).split()

TIMES = (
    "In the morning|At noon|In the evening|Late at night|After the rain|Before dawn|On Sunday|"
    "In early spring|During the winter|Last summer|Once a week|For many years"
).split("|")
PEOPLE = (
    "the old sailor|a young teacher|the quiet doctor|my neighbor|the baker|a group of children|"
    "the tall farmer|her brother|the singer|an old friend|the new clerk|a stranger|the painter|"
    "two travelers|the captain|our guide"
).split("|")
ACTIONS = (
    "walked along|looked at|talked about|painted|wrote about|waited near|dreamed of|searched for|"
    "passed by|remembered|cleaned|waved toward"
).split("|")
THINGS = (
    "the wooden boat|a small stone wall|the narrow road|an empty house|the green hills|"
    "a broken clock|the long train|some wild flowers|the tall trees|a red door|the city lights|"
    "an open window|the cold water|a pile of letters|the distant mountains|a blue coat"
).split("|")
ENDINGS = (
    "and then went home|without saying a word|while the wind was blowing|with a warm smile|"
    "until the sun went down|and nobody was surprised|as the birds were singing|"
    "and it was a good day|because there was time|before drinking some tea"
).split("|")


@dataclass(frozen=True)
class Exercise:
    """One question about a part, its worked answer and the facts (indices) it rests on."""

    question: str
    answer: str
    facts: tuple[int, ...]


@dataclass(frozen=True)
class Part:
    """Facts of one task, to be hidden in a text in this order, and exercises about them."""

    task: str
    facts: list[str]
    exercises: list[Exercise]


@dataclass(frozen=True)
class Sample:
    """A prompt with its answer; `evidence` holds (start, end) character spans in the prompt.

    The prompt is `prompt[:context_end] + prompt[context_end:]`: context, then question.
    """

    task: str
    prompt: str
    answer: str
    evidence: list[tuple[int, int]] = field(default_factory=list)
    context_end: int = 0

    @property
    def context(self) -> str:
        return self.prompt[: self.context_end]

    @property
    def question(self) -> str:
        return self.prompt[self.context_end :]


def filler_sentence(rng: random.Random) -> str:
    """One sentence of everyday prose without digits and without a task's words."""
    person, action, thing = rng.choice(PEOPLE), rng.choice(ACTIONS), rng.choice(THINGS)
    form = rng.randrange(3)
    if form == 0:
        return f"{rng.choice(TIMES)} {person} {action} {thing}."
    start = person[0].upper() + person[1:]
    if form == 1:
        return f"{start} {action} {thing} {rng.choice(ENDINGS)}."
    return f"{rng.choice(TIMES)} {person} {action} {thing} {rng.choice(ENDINGS)}."


def number(rng: random.Random, digits: int) -> str:
    """A string of `digits` decimal digits, the first one not zero."""
    return str(rng.randint(1, 9)) + "".join(rng.choices("0123456789", k=digits - 1))


def passkey(rng: random.Random, *, digits: int = 7) -> Part:
    """One number of 4 to 64 digits to be repeated."""
    fact = f"The passkey is {number(rng, digits)}."
    return Part("passkey", [fact], [Exercise("What is the passkey?", f" {fact}", (0,))])


def needle(rng: random.Random, *, keys: int = 8, digits: int = 5, questions: int = 1) -> Part:
    """`keys` places with a code each; every exercise asks for `questions` of them."""
    places = rng.sample(KEYS, keys)
    facts = [f"The code of the {place} is {number(rng, digits)}." for place in places]
    order = rng.sample(range(keys), keys)
    exercises = []
    for start in range(0, keys - questions + 1, questions):
        asked = order[start : start + questions]
        names = [f"the {places[i]}" for i in asked]
        listed = names[0] if questions == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
        verb = "What is the code of" if questions == 1 else "What are the codes of"
        answer = "".join(f" {facts[i]}" for i in asked)
        exercises.append(Exercise(f"{verb} {listed}?", answer, tuple(asked)))
    return Part("needle", facts, exercises)


def trace(rng: random.Random, *, hops: int = 3, chains: int = 2, digits: int = 5) -> Part:
    """Chains of variables: `hops` references lead from the asked variable to a number."""
    names = rng.sample(VARIABLES, chains * (hops + 1))
    facts, paths = [], []
    for chain in range(chains):
        chain_names = names[chain * (hops + 1) : (chain + 1) * (hops + 1)]
        path = [
            f"The value of {name} is the value of {target}."
            for name, target in pairwise(chain_names)
        ]
        path.append(f"The value of {chain_names[-1]} is {number(rng, digits)}.")
        paths.append((chain_names[0], path))
        facts += path
    rng.shuffle(facts)
    exercises = [
        Exercise(
            f"What is the value of {name}?",
            "".join(f" {fact}" for fact in path),
            tuple(facts.index(fact) for fact in path),
        )
        for name, path in paths
    ]
    rng.shuffle(exercises)
    return Part("trace", facts, exercises)


def arithmetic(rng: random.Random, *, steps: int = 12, items: int = 6, first: int = 0) -> Part:
    """Counts of goods, then a list (A, B, …) of additions and subtractions to work through.
    `first` is the place in the alphabet of the first letter; training begins anywhere, so that
    late letters are as well known as early ones.

    The running total stays between 0 and 99. The worked answer looks up the count of the named
    goods at every step, so a definition is needed again whenever its goods return.
    """
    goods = rng.sample(ITEMS, items)
    counts = {name: rng.randint(1, 9) for name in goods}
    facts = [f"The number of {name} is {counts[name]}." for name in goods]
    total = start = rng.randint(10, 60)
    orders, worked, used = [], [], []
    for label in ascii_uppercase[first : first + steps]:
        name = rng.choice(goods)
        count = counts[name]
        plus = total < count or (total + count < 100 and rng.random() < 0.5)
        after = total + count if plus else total - count
        order = f" Step {label} {'add' if plus else 'take'} {name}."
        orders.append(order)
        sign = "+" if plus else "-"
        worked.append(
            f"{order} The number of {name} is {count}. So {total} {sign} {count} = {after}."
        )
        used.append(goods.index(name))
        total = after
    question = f"Begin with {start}.{''.join(orders)} What is the result?"
    answer = f" Begin with {start}.{''.join(worked)} The result is {total}."
    return Part("arithmetic", facts, [Exercise(question, answer, tuple(sorted(set(used))))])


TASKS: dict[str, Callable[..., Part]] = {
    "passkey": passkey,
    "needle": needle,
    "trace": trace,
    "arithmetic": arithmetic,
}


@lru_cache(maxsize=1)
def _demo_tokenizer():  # type: ignore[no-untyped-def]
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(TOKENIZER_FILE))


def count_tokens(text: str) -> int:
    """Number of tokens of `text` for the embedded model's tokenizer."""
    return len(_demo_tokenizer().encode(text).ids)


def hide(facts: list[str], sentences: list[str], rng: random.Random) -> tuple[str, list[int]]:
    """Puts the facts, in order, at random places among the sentences.

    Returns the text and the start character of every fact in it.
    """
    slots = sorted(rng.randint(0, len(sentences)) for _ in facts)
    pieces, starts, length = [OPENING], [], len(OPENING)
    done = 0
    for i in range(len(sentences) + 1):
        while done < len(facts) and slots[done] == i:
            pieces.append(facts[done])
            starts.append(length + 1)  # after the joining space
            length += 1 + len(facts[done])
            done += 1
        if i < len(sentences):
            pieces.append(sentences[i])
            length += 1 + len(sentences[i])
    return " ".join(pieces), starts


def filler_sentences(tokens: int, rng: random.Random) -> list[str]:
    """Sentences of at most `tokens` tokens together."""
    sentences: list[str] = []
    while True:
        sentence = filler_sentence(rng)
        tokens -= _sentence_tokens(sentence)
        if tokens < 0:
            return sentences
        sentences.append(sentence)


@lru_cache(maxsize=4096)
def _word_tokens(word: str) -> int:
    return count_tokens(f" {word}")


def _sentence_tokens(sentence: str) -> int:
    # Exact: the tokenizer never merges across a space.
    return sum(_word_tokens(word) for word in sentence.split(" "))


def sample(
    task: str,
    *,
    rng: random.Random,
    tokens: int | None = None,
    filler: int = 0,
    **options: int,
) -> Sample:
    """One prompt of `task` with its answer and evidence.

    `tokens` is the wanted prompt length (reached from below within one sentence); without it the
    prompt holds `filler` sentences of filler. `options` go to the task's function. Raises
    KeyError for an unknown task and ValueError where the task alone is longer than `tokens`.
    """
    part = TASKS[task](rng, **options)
    exercise = part.exercises[0]
    question = QUESTION.format(exercise.question)
    if tokens is None:
        sentences = [filler_sentence(rng) for _ in range(filler)]
    else:
        room = tokens - count_tokens(" ".join([OPENING, *part.facts]) + question)
        if room < 0:
            raise ValueError(f"{task} needs {tokens - room} tokens, more than the {tokens} asked.")
        sentences = filler_sentences(room, rng)
    context, starts = hide(part.facts, sentences, rng)
    evidence = sorted((starts[i], starts[i] + len(part.facts[i])) for i in exercise.facts)
    return Sample(task, context + question, exercise.answer, evidence, len(context))
