"""Scores against examples worked out by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.study.scores import SCORES


def score(key: str, response: str, *answers: str) -> float:
    return SCORES[key](response, answers)


@pytest.mark.parametrize(
    ("response", "answers", "expected"),
    [
        (" The cat. ", ("cat",), 1.0),  # case, the article and the full stop do not count
        ("a cat", ("dog", "Cat"), 1.0),  # any reference
        ("cats", ("cat",), 0.0),
    ],
)
def test_exact_ignores_case_articles_and_punctuation(response, answers, expected):
    assert score("exact", response, *answers) == expected


def test_substring_scores_are_those_of_ruler():
    # string_match_all: 2 of 3 references; string_match_part: at least one
    response, answers = "The codes are 12345 and ALPHA.", ("12345", "alpha", "777")
    assert score("substring_share", response, *answers) == pytest.approx(2 / 3)
    assert score("substring_any", response, *answers) == 1.0
    assert score("substring_any", "none of them", *answers) == 0.0


@pytest.mark.parametrize(
    ("response", "answer", "expected"),
    [
        ("The passkey is 8442917.", "8442917", 1.0),
        ("The passkey is 8442017.", "8442917", 6 / 7),
        ("The passkey is 84429.", "8442917", 5 / 7),  # stopped early
        ("8442917999", "8442917", 1.0),  # what follows costs nothing
        ("44291", "8442917", 1 / 7),  # one digit lost: only the second 4 meets its place
        ("In 5 words: 8442917", "8442917", 1.0),  # the best run of digits
        ("no number", "8442917", 0.0),
    ],
)
def test_digits_count_at_their_place(response, answer, expected):
    assert score("digit_share", response, answer) == pytest.approx(expected)


def test_digit_share_is_the_mean_over_references():
    assert score("digit_share", "12 and 94", "12", "34") == pytest.approx((1 + 1 / 2) / 2)


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("So 40 + 7 = 47. The result is 47.", 1.0),
        ("The result is 47. That took 3 steps.", 0.0),  # the last number is 3
        ("The result is 475.", 0.0),
        ("47.0", 1.0),
        ("", 0.0),
    ],
)
def test_the_final_number_decides(response, expected):
    assert score("final_number", response, "The result is 47.") == expected


def test_f1_of_words():
    # response 4 words after normalising (quick brown fox jumps), reference 3 (brown fox runs);
    # 2 in common: precision 1/2, recall 2/3, F1 = 2 · (1/2 · 2/3) / (1/2 + 2/3) = 4/7
    assert score("f1", "The quick brown fox jumps", "brown fox runs") == pytest.approx(4 / 7)
    assert score("f1", "brown fox", "nothing", "a brown fox") == 1.0
    assert score("f1", "", "brown") == 0.0


def test_f1_counts_characters_where_words_are_not_spaced():
    # 3 of the response's 4 characters are in the reference's 3: precision 3/4, recall 1
    assert score("f1", "北京大学", "北大学") == pytest.approx(2 * 0.75 / 1.75)


def test_rouge_l_is_the_longest_common_subsequence():
    # Lin 2004: "police killed the gunman" / "police kill the gunman": "police the gunman", 3 of 4
    # words on both sides; "the gunman kill police" shares only "the gunman": 2 of 4
    reference = "police killed the gunman"
    assert score("rouge_l", "police kill the gunman", reference) == pytest.approx(3 / 4)
    assert score("rouge_l", "the gunman kill police", reference) == pytest.approx(2 / 4)
    # the best of two references
    assert score("rouge_l", "police kill the gunman", "nobody", reference) == pytest.approx(3 / 4)


@pytest.mark.parametrize("key", SCORES)
def test_no_reference_no_score(key):
    with pytest.raises(ValueError, match="reference"):
        SCORES[key]("text", ())


@pytest.mark.parametrize("key", SCORES)
@settings(max_examples=30, deadline=None)
@given(st.text(max_size=30), st.lists(st.text(max_size=12), min_size=1, max_size=3))
def test_every_score_stays_between_0_and_1(key, response, answers):
    assert 0 <= SCORES[key](response, answers) <= 1


@pytest.mark.parametrize("key", SCORES)
def test_the_reference_itself_scores_1(key):
    assert score(key, "word 47", "word 47") == 1.0
