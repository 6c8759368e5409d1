"""Generated tasks: exact lengths, seeds, answers that stand in the text, refusals."""

import math
import re
from collections import Counter

import pytest

from backend.demo.tasks import count_tokens
from backend.spec import PromptError
from backend.study.tasks import TASKS, default_wording, generate, prompts

SHORT = {"common_words": {"common": 3, "repeats": 3}}  # fits into a few hundred tokens


def draw(task, count_tokens=count_tokens, *, count=2, seed=3, **options):
    options = {"length": [600], **SHORT.get(task, {}), **options}
    return generate(task, count=count, seed=seed, options=options, count_tokens=count_tokens)


def word_count(text: str) -> int:
    return len(text.split())


def every_third_character(text: str) -> int:
    """A tokenizer whose tokens do not add up over pieces."""
    return math.ceil(len(text) / 3)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("counter", [count_tokens, word_count, every_third_character])
def test_prompts_have_exactly_the_asked_length(task, counter):
    # thirds of characters do not add up, and "12. word" is two words: a few may be missing
    adds_up = counter is count_tokens or (counter is word_count and task != "common_words")
    short = 0 if adds_up else 2
    for example in draw(task, counter, length=[500, 777]):
        missing = example.facts["length"] - counter(example.context + example.question)
        assert 0 <= missing <= short


@pytest.mark.parametrize("task", TASKS)
def test_the_answers_stand_in_the_context_and_score_1(task):
    from backend.study.scores import SCORES

    for example in draw(task, count=3):
        if task == "arithmetic":  # has to be worked out
            continue
        assert all(answer in example.context for answer in example.answers)
        for scoring in TASKS[task].scorings:
            if scoring in ("substring_share", "digit_share"):
                assert SCORES[scoring](" ".join(example.answers), example.answers) == 1


@pytest.mark.parametrize("task", TASKS)
def test_a_seed_gives_the_same_prompts_and_more_of_them_keep_the_first(task):
    few = draw(task, count=2)
    assert draw(task, count=3)[:2] == few
    assert draw(task, count=2, seed=4) != few
    assert len({example.id for example in few}) == 2


def test_count_is_per_length_and_depth():
    options = {"length": [300, 400], "depth": [0, 0.5, 1]}
    examples = draw("passkey", count=2, **options)
    assert len(examples) == prompts("passkey", 2, options) == 12
    places = Counter((e.facts["length"], e.facts["depth"]) for e in examples)
    assert places == {(n, d): 2 for n in (300, 400) for d in (0, 0.5, 1)}


def test_the_asked_fact_stands_at_its_depth():
    for depth in (0, 0.25, 0.5, 0.75, 1):
        for task in ("passkey", "multi_key"):
            (example,) = draw(task, count=1, length=[900], depth=depth)
            ((start, end),) = example.facts["evidence"]
            assert example.answers[0] in example.context[start:end]
            before = count_tokens(example.context[:start]) / count_tokens(example.context)
            assert before == pytest.approx(depth, abs=0.05)


def test_evidence_names_what_the_answer_rests_on():
    (example,) = draw("variable_tracing", count=1, hops=3, chains=2, wording="demo")
    spans = [example.context[a:b] for a, b in example.facts["evidence"]]
    assert len(spans) == 4  # three references and the number
    value_of = dict(re.findall(r"The value of (\w+) is (?:the value of )?(\w+)\.", " ".join(spans)))
    name = re.search(r"value of (\w+)\?", example.question)[1]
    while name in value_of:
        name = value_of[name]
    assert (name,) == example.answers


def test_english_tracing_asks_for_every_variable_with_the_value():
    (example,) = draw("variable_tracing", count=1, hops=3, chains=3, wording="english")
    facts = dict(re.findall(r"The value of (\w+) is (?:the value of )?(\w+)\.", example.context))
    asked = re.search(r"have the value (\d+)", example.question)[1]

    def value(name):
        return value(facts[name]) if name in facts else name

    assert {name for name in facts if value(name) == asked} == set(example.answers)


def test_worked_arithmetic_by_doing_it():
    (example,) = draw("arithmetic", count=1, steps=5, items=3, wording="demo")
    counts = dict(re.findall(r"The number of (\w+) is (\d+)\.", example.context))
    total = int(re.search(r"Begin with (\d+)", example.question)[1])
    for sign, goods in re.findall(r"(add|take) (\w+)\.", example.question):
        total += int(counts[goods]) * (1 if sign == "add" else -1)
    assert example.answers == (f"The result is {total}.",)


def test_common_and_frequent_words_are_the_most_frequent():
    (common,) = draw("common_words", count=1)
    found = Counter(re.findall(r"\d+\. (\S+)", common.context)).most_common(4)
    assert {word for word, _ in found[:3]} == set(common.answers)
    assert found[3][1] < found[2][1]
    (frequent,) = draw("frequent_words", count=1)
    words = Counter(re.findall(r"\b[a-z]{6}\b", frequent.context.partition("\n")[2]))
    # 64 / rank²: 16, 7 and 4 times, the dots have rank 1
    assert [n for _, n in words.most_common(4)] == [16, 7, 4, 3]
    assert tuple(word for word, _ in words.most_common(3)) == frequent.answers


def test_values_of_one_place_are_all_asked():
    (example,) = draw("multi_value", count=1, values=5, keys=3)
    place = re.search(r"codes of the (\w+)\?", example.question)[1]
    assert set(re.findall(rf"of the {place} is (\d+)\.", example.context)) == set(example.answers)
    assert len(example.answers) == 5


def test_the_embedded_model_gets_its_own_wording():
    assert default_wording("passkey", "demo") == "demo"
    assert default_wording("passkey", "some/model") == "english"
    with pytest.raises(PromptError, match="was not taught common_words"):
        default_wording("common_words", "demo")
    (example,) = draw("passkey", count=1, wording="demo")
    assert example.question == "\nQuestion: What is the passkey?\nAnswer:"


@pytest.mark.parametrize(
    ("task", "options", "sentence"),
    [
        ("passkeys", {}, "no task 'passkeys'"),
        ("passkey", {"digit": 3}, "no option 'digit'"),
        ("passkey", {"digits": 0}, "digits is 0, give a whole number from 1 to 128"),
        ("passkey", {"digits": 2.5}, "digits is 2.5"),
        ("passkey", {"depth": [0, 2]}, "depth is 2"),
        ("passkey", {"length": []}, r"length is \[\]"),
        ("passkey", {"wording": "latin"}, 'wording is "latin", give one of demo, english'),
        ("passkey", {"length": 32, "digits": 60}, "needs .* tokens, more than the 32 asked"),
        ("multi_key", {"keys": 2, "questions": 3}, "3 codes are asked for and only 2"),
        ("variable_tracing", {"hops": 8, "chains": 8}, "72 variables are needed"),
        ("multi_value", {"depth": [0.5]}, "no option 'depth'"),
    ],
)
def test_a_wrong_option_gets_one_sentence(task, options, sentence):
    with pytest.raises(PromptError, match=sentence) as raised:
        generate(task, count=1, seed=0, options=options, count_tokens=count_tokens)
    assert str(raised.value).endswith(".") and "\n" not in str(raised.value)


def test_no_prompt_is_no_study():
    with pytest.raises(PromptError, match="count is 0"):
        draw("passkey", count=0)
