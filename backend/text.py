"""Text and tokens: the prompt as the model reads it, and exact pieces of text per token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from backend.models import ModelFacts
from backend.spec import CaptureSpec, PromptError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BRIDGE = 8  # prompt tokens decoded before the response, so that spaces between both come out right


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt as tokens. `pieces` joined are exactly `text`; a token whose text comes with a
    later token (a character split over tokens) or has none (an added start token) has ''.
    The first `context_length` tokens are the context, the others the question."""

    text: str
    ids: list[int]
    pieces: list[str]
    context_length: int


def encode_prompt(tokenizer: PreTrainedTokenizerBase, spec: CaptureSpec) -> EncodedPrompt:
    """Tokens of `spec.prompt`, through the chat template when asked.

    With a template, the text is the rendered conversation and everything after the context
    (question, end of turn, start of the answer) counts as question. Raises PromptError when there
    is no template or nothing is left to read.
    """
    text, boundary = spec.prompt, len(spec.context)
    if spec.chat_template:
        text = _render(tokenizer, spec)
        boundary = _boundary(text, spec) if spec.question else len(text)
    plain = not spec.chat_template  # a rendered conversation already holds its special tokens
    if tokenizer.is_fast:
        encoded = tokenizer(text, add_special_tokens=plain, return_offsets_mapping=True)
        ids = list(encoded["input_ids"])
        pieces = _pieces(text, encoded["offset_mapping"])
    else:
        ids = list(tokenizer(text, add_special_tokens=plain)["input_ids"])
        stream = TextStream(tokenizer, [])
        pieces = [stream.push(token) for token in ids]
        if pieces:
            pieces[-1] += stream.rest()
        text = "".join(pieces)
    if not ids:
        raise PromptError("The prompt has no tokens: type some text.")
    context_length = len(ids)
    if spec.question:
        context_length = _question_start(pieces, min(boundary, len(text) - 1))
    return EncodedPrompt(text, ids, pieces, context_length)


def check_length(prompt: EncodedPrompt, facts: ModelFacts, spec: CaptureSpec) -> None:
    """Raises PromptError when prompt and response do not fit the model's context."""
    count, limit = len(prompt.ids), facts.max_positions
    if limit is None:
        return
    if count >= limit:
        raise PromptError(
            f"The prompt has {count:,} tokens and the model's context is {limit:,}: shorten the "
            "prompt or choose a model with a longer context."
        )
    if count + spec.max_new_tokens > limit:
        raise PromptError(
            f"The prompt's {count:,} tokens and {spec.max_new_tokens:,} new tokens exceed the "
            f"model's context of {limit:,}: ask for at most {limit - count:,} new tokens."
        )


class TextStream:
    """Text of tokens as they come, held back while the last character is incomplete.

    The pieces that `push` returns, with `rest()` at the end, joined, are what the tokenizer
    decodes the pushed tokens to (special tokens by name).
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, before: list[int]) -> None:
        self._tokenizer = tokenizer
        self._ids = before[-BRIDGE:]
        self._first = 0  # tokens decoded again so that what follows them is spaced right
        self._read = len(self._ids)  # tokens whose text has been returned

    def push(self, token: int) -> str:
        self._ids.append(token)
        piece = self._unread()
        if not piece or piece.endswith("\ufffd"):
            return ""
        self._first, self._read = self._read, len(self._ids)
        return piece

    def rest(self) -> str:
        """What is still held back: bytes that never became a character."""
        piece = self._unread()
        self._first = self._read = len(self._ids)
        return piece

    def _unread(self) -> str:
        known = self._decode(self._ids[self._first : self._read])
        return self._decode(self._ids[self._first :])[len(known) :]

    def _decode(self, ids: list[int]) -> str:
        text = self._tokenizer.decode(
            ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return str(text)


def _pieces(text: str, offsets: list[tuple[int, int]]) -> list[str]:
    """Cut `text` at the tokens' ends. What no token covers goes to the next one; a token whose
    last character goes on in the next token leaves that character to it."""
    ends = [0] * len(offsets)
    limit = len(text)
    last = True
    for index in range(len(offsets) - 1, -1, -1):
        start, end = offsets[index]
        if start == end:  # a token added by the tokenizer, with no text of its own
            ends[index] = -1
            continue
        ends[index] = len(text) if last else min(end, limit)
        last = False
        limit = min(limit, start)
    pieces, position = [], 0
    for end in ends:
        end = max(end, position)
        pieces.append(text[position:end])
        position = end
    return pieces


def _render(tokenizer: PreTrainedTokenizerBase, spec: CaptureSpec) -> str:
    if not getattr(tokenizer, "chat_template", None):
        raise PromptError(
            f"The tokenizer of '{spec.model_id}' has no chat template: turn the chat template off."
        )
    try:
        return str(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": spec.prompt}],
                tokenize=False,
                add_generation_prompt=True,
            )
        )
    except Exception as error:  # templates are programs of their own
        raise PromptError(
            f"The chat template of '{spec.model_id}' failed on this prompt ({error}): turn the "
            "chat template off."
        ) from error


def _boundary(rendered: str, spec: CaptureSpec) -> int:
    """Where the question begins in the rendered conversation; templates may strip the message."""
    start = rendered.find(spec.prompt)
    if start >= 0:
        return start + len(spec.context)
    start = rendered.find(spec.prompt.strip())
    dropped = len(spec.prompt) - len(spec.prompt.lstrip())
    if start >= 0:
        return start + max(0, len(spec.context) - dropped)
    raise PromptError(
        f"The chat template of '{spec.model_id}' rewrites the prompt, so its question cannot be "
        "told apart: turn the chat template off, or leave the question empty."
    )


def _question_start(pieces: list[str], boundary: int) -> int:
    """The first token that begins at or after the boundary; where no token does, the one that
    holds it."""
    position, holder = 0, 0
    for index, piece in enumerate(pieces):
        if piece and position >= boundary:
            return index
        if piece:
            holder = index
        position += len(piece)
    return holder
