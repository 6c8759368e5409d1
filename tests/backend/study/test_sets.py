"""Sets as people have them, and what is wrong with the malformed ones."""

import json

import pytest

from backend.spec import PromptError
from backend.study.sets import read_set


def jsonl(*rows) -> bytes:
    return "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows).encode()


RULER = {
    "index": 4,
    "input": "Some magic numbers are hidden.\nThe number is 77.\nWhat is the number?",
    "outputs": ["77", "78"],
    "length": 200,
    "answer_prefix": " The number is",
    "token_position_answer": 50,
}
LONGBENCH = {
    "input": "Who wrote it?",
    "context": "Ada wrote it.",
    "answers": ["Ada", "Ada Lovelace"],
    "length": 3,
    "dataset": "hotpotqa_e",
    "language": "en",
    "all_classes": None,
    "_id": "0a1b",
}


def test_ruler():
    (example,) = read_set(jsonl(RULER), "niah_single_1.jsonl")
    assert example.context == "Some magic numbers are hidden.\nThe number is 77."
    assert example.question == "\nWhat is the number? The number is"
    assert (example.answers, example.scoring) == (("77", "78"), "substring_share")
    assert example.task == "niah_single_1"
    assert example.facts == {"index": 4, "length": 200, "depth": 0.25}
    # questions are right when any reference is found
    (question,) = read_set(jsonl(RULER), "qa_1.jsonl")
    assert question.scoring == "substring_any"


def test_longbench():
    (example,) = read_set(jsonl(LONGBENCH), "hotpotqa_e.jsonl")
    assert example.context + example.question == (
        "Ada wrote it.\n\nQuestion: Who wrote it?\nAnswer:"
    )
    assert (example.scoring, example.max_new_tokens) == ("f1", 32)
    assert example.answers == ("Ada", "Ada Lovelace")
    assert example.facts["_id"] == "0a1b"
    summary = LONGBENCH | {"dataset": "gov_report", "input": ""}
    (report,) = read_set(jsonl(summary), "gov_report.jsonl")
    assert (report.question, report.scoring) == ("\n\nAnswer:", "rouge_l")
    assert report.max_new_tokens == 512
    few_shot = LONGBENCH | {"dataset": "trec", "input": "Question: Who?\nType:"}
    assert read_set(jsonl(few_shot), "trec.jsonl")[0].question == "\nQuestion: Who?\nType:"


def test_context_question_and_answers():
    row = {"context": "a", "question": " b?", "answer_prefix": " c", "answer": "d", "task": "t"}
    (example,) = read_set(jsonl(row | {"max_new_tokens": 5, "scoring": "rouge_l"}), "x.jsonl")
    assert (example.context, example.question, example.answers) == ("a", " b? c", ("d",))
    assert (example.task, example.max_new_tokens, example.scoring) == ("t", 5, "rouge_l")


@pytest.mark.parametrize(
    ("name", "data", "count"),
    [
        ("a.jsonl", b'{"prompt": "Once"}\n\n"Twice"\n', 2),
        ("a.json", b'["Once", "Twice", "Thrice"]', 3),
        ("a.csv", b"prompt\nOnce\nTwice\n", 2),
        ("a.txt", b"Once upon a time", 1),
    ],
)
def test_plain_prompts_are_compared_by_agreement(name, data, count):
    examples = read_set(data, name)
    assert len(examples) == count
    assert {(e.answers, e.scoring, e.question) for e in examples} == {((), "", "")}
    assert examples[0].context.startswith("Once")
    assert len({e.id for e in examples}) == count


def test_a_file_on_disk(tmp_path):
    path = tmp_path / "set.jsonl"
    path.write_bytes(jsonl(RULER, LONGBENCH))
    assert [example.id for example in read_set(path, path.name)] == ["set-0", "set-1"]
    with pytest.raises(PromptError, match=r"set none.jsonl|none.jsonl cannot be read"):
        read_set(tmp_path / "none.jsonl", "none.jsonl")


GOOD = {"context": "a", "question": "b", "answers": ["c"]}


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("{", "Line 3 of a.jsonl is not valid JSON"),
        ({"passage": "a"}, "Line 3 of a.jsonl has the fields passage"),
        (GOOD | {"answers": [5]}, "Line 3 of a.jsonl: answers holds the number 5"),
        (GOOD | {"answers": [""]}, "Line 3 of a.jsonl: answers holds an empty text"),
        (GOOD | {"context": " "}, "Line 3 of a.jsonl: context is empty"),
        (GOOD | {"question": ["b"]}, "Line 3 of a.jsonl: question is a list"),
        (GOOD | {"scoring": "bleu"}, "Line 3 of a.jsonl: scoring is 'bleu'"),
        (GOOD | {"answers": [], "scoring": "f1"}, "Line 3 of a.jsonl: f1 needs answers"),
        (GOOD | {"max_new_tokens": 0}, "Line 3 of a.jsonl: max_new_tokens is 0"),
        (RULER | {"input": 3}, "Line 3 of a.jsonl: input is the number 3"),
    ],
)
def test_a_malformed_row_is_named_by_its_line_and_field(row, sentence):
    # the second line is empty: lines are those of the file
    with pytest.raises(PromptError, match=sentence) as raised:
        read_set(jsonl(GOOD, "", row), "a.jsonl")
    assert str(raised.value).endswith(".") and "\n" not in str(raised.value)


def test_rows_without_lines_are_counted():
    with pytest.raises(PromptError, match=r"Row 2 of a\.json: answers holds true|Row 2 of a\.json"):
        read_set(json.dumps([GOOD, GOOD | {"answers": True}]).encode(), "a.json")
