"""A capture's specification: round trip and the sentence for each value that cannot be used."""

import json

import pytest

from backend.spec import CaptureSpec, PromptError


def test_json_round_trip_keeps_every_character() -> None:
    spec = CaptureSpec(
        context="a\r\nb\t\u200b𝔘",
        question="\n---\nwhere?",
        stored_layers=[3, 1, 1],
        sample=True,
        temperature=1,
        revision="main",
    )
    again = CaptureSpec.from_dict(json.loads(json.dumps(spec.to_dict())))
    assert again == spec
    assert again.prompt == "a\r\nb\t\u200b𝔘\n---\nwhere?"
    assert again.stored_layers == [1, 3]
    assert again.to_dict()["temperature"] == 1.0


def test_the_plainest_specification_needs_only_a_context() -> None:
    spec = CaptureSpec.from_dict({"context": "hello"})
    assert (spec.model_id, spec.window, spec.top_k, spec.question) == ("demo", 32, 16, "")


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"context": ""}, "prompt is empty"),
        ({"context": " \n\t"}, "prompt is empty"),
        ({}, "no prompt"),
        ({"context": 3}, "context is 3"),
        ({"context": "a\ud800"}, "U+D800 at character 2"),
        ({"model_id": " "}, "No model"),
        ({"dtype": "int3"}, "'int3'"),
        ({"device": "tpu"}, "'tpu'"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"max_new_tokens": 2.5}, "max_new_tokens is 2.5"),
        ({"max_new_tokens": True}, "max_new_tokens is True"),
        ({"min_new_tokens": 9, "max_new_tokens": 3}, "min_new_tokens is 9"),
        ({"sample": True, "temperature": 0}, "temperature is 0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"top_k_sampling": -1}, "top_k_sampling is -1"),
        ({"seed": -4}, "seed is -4"),
        ({"seed": 2**63}, "seed is 9223372036854775808"),
        ({"window": 0}, "window is 0"),
        ({"top_k": 0}, "top_k is 0"),
        ({"stored_layers": [3, -1]}, "layer -1"),
        ({"sample": True, "temperature": 1e-300}, "temperature is 1e-300"),
        ({"sample": True, "temperature": 0.009}, "use a value from 0.01 to 100"),
        ({"sample": True, "temperature": 101}, "temperature is 101"),
        ({"temperature": -1}, "temperature is -1"),
        ({"title": "bad\udcff"}, "title holds U+DCFF at character 4"),
        ({"source": "\ud800"}, "source holds U+D800"),
        ({"model_id": "\ud800"}, "model_id holds U+D800"),
        ({"stored_layers": "all"}, "stored_layers is 'all'"),
        ({"speed": 1}, "'speed'"),
    ],
)
def test_a_value_that_cannot_be_used_is_named_in_one_sentence(
    values: dict[str, object], named: str
) -> None:
    full = values if not values or "context" in values else {"context": "x", **values}
    with pytest.raises(PromptError) as caught:
        CaptureSpec.from_dict(full)
    message = str(caught.value)
    assert named in message
    assert "\n" not in message and message.endswith(".")


def test_what_is_no_object_is_refused() -> None:
    with pytest.raises(PromptError, match="settings are not"):
        CaptureSpec.from_dict([1])  # type: ignore[arg-type]


def test_a_cuda_device_may_carry_its_number() -> None:
    assert CaptureSpec(context="x", device="cuda:1").device == "cuda:1"
