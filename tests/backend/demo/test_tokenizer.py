"""The shipped tokenizer loses nothing and never joins digits."""

import re

import pytest
from transformers import AutoTokenizer

from backend.demo import tasks, tokenizer

FOLDER = tasks.TOKENIZER_FILE.parent


@pytest.fixture(scope="module")
def shipped():  # type: ignore[no-untyped-def]
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " leading, trailing ",
        "no space",
        "a  b\t\tc\r\n\n  d\n",
        "don't can't 's . , !",
        "naïve café, e\u0301",
        "汉字 かな 한국어 العربية עברית",
        "👩‍👩‍👧‍👦 🏳️‍🌈 \U0001f9ff",
        "\u200b\ufeff\u00a0\u2028\x00\x7f",
        "１２３ ٣٤ ² ½ 12,345.678",
        "<|endoftext|> and <b>html</b>",
    ],
)
def test_round_trip(shipped, text: str) -> None:  # type: ignore[no-untyped-def]
    assert shipped.decode(shipped.encode(text)) == text


def test_one_token_per_digit(shipped) -> None:  # type: ignore[no-untyped-def]
    pieces = [shipped.decode([i]) for i in shipped.encode("The passkey is 9071, not x42y.")]
    assert [p for p in pieces if re.search(r"\d", p)] == list("907142")
    assert not [t for t in shipped.get_vocab() if len(t) > 1 and re.search(r"[0-9]", t)]


def test_a_text_and_its_parts_have_the_same_tokens(shipped) -> None:  # type: ignore[no-untyped-def]
    context, question, answer = "A red door.", "\nQuestion: Why?\nAnswer:", " Because."
    parts = [i for part in (context, question, answer) for i in shipped.encode(part)]
    assert shipped.encode(context + question + answer) == parts


def test_end_of_text_is_one_token(shipped) -> None:  # type: ignore[no-untyped-def]
    assert shipped.encode("<|endoftext|>") == [shipped.eos_token_id] == [0]


def test_words_of_the_tasks_are_one_token(shipped) -> None:  # type: ignore[no-untyped-def]
    for word in tasks.KEYS + tasks.VARIABLES + tasks.ITEMS:
        assert len(shipped.encode(f" {word}")) == 1


def test_build_gives_the_shipped_tokenizer(shipped) -> None:  # type: ignore[no-untyped-def]
    assert tokenizer.build().get_vocab() == shipped.get_vocab()
