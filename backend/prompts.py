"""From what a reader typed or uploaded (backend.uploads) to prompts, every character kept.

A prompt may be split into context and question, by two fields of a row or by a line of its own
that reads `---question---`; that line itself is not part of the prompt.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from backend.spec import PromptError, require_text
from backend.uploads import EXTENSIONS, Upload, kind_of, parse

__all__ = [
    "EXTENSIONS",
    "FieldMapping",
    "Prompt",
    "PromptError",
    "Upload",
    "choose_rows",
    "parse",
    "propose_mapping",
    "row_prompt",
    "row_prompts",
    "split_prompt",
    "typed_prompt",
]

QUESTION_LINE = "---question---"
PROMPT_FIELDS = ("prompt", "text", "input", "inputs", "content", "instruction", "document")
CONTEXT_FIELDS = ("context", "document", "passage", "article", "story", "input")
QUESTION_FIELDS = ("question", "query", "instruction")


@dataclass(frozen=True)
class Prompt:
    """A prompt; its first `context_end` characters are the context, None when it is not split.
    `source` says where it came from, for the reader and the capture's settings."""

    text: str
    context_end: int | None = None
    source: str = "typed"

    @property
    def context(self) -> str:
        return self.text[: self.context_end]

    @property
    def question(self) -> str:
        return "" if self.context_end is None else self.text[self.context_end :]


@dataclass(frozen=True)
class FieldMapping:
    """Which field of a row is the prompt, or which two are its context and question."""

    prompt: str | None = None
    context: str | None = None
    question: str | None = None


def propose_mapping(fields: Sequence[str]) -> FieldMapping:
    """A guess by the usual names: context and question where there are both, otherwise the
    prompt, otherwise the first field."""
    by_name = {field.strip().lower(): field for field in reversed(fields)}

    def first(names: Iterable[str]) -> str | None:
        return next((by_name[name] for name in names if name in by_name), None)

    context, question = first(CONTEXT_FIELDS), first(QUESTION_FIELDS)
    if "prompt" not in by_name and context and question and context != question:
        return FieldMapping(context=context, question=question)
    prompt = first(PROMPT_FIELDS) or context or question
    return FieldMapping(prompt=prompt or (fields[0] if fields else None))


def choose_rows(text: str, count: int) -> list[int]:
    """Row numbers from "1-3, 7" or "all", counted from 1, each once, in the order given."""
    if text.strip().lower() in ("", "all"):
        return list(range(1, count + 1))
    chosen: dict[int, None] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})\s*(?:[-–]\s*(\d{1,9})\s*)?", part)
        if match is None:
            raise PromptError(f"'{part.strip()[:40]}' is no row: write rows as 1-3, 7.")
        first = int(match[1])
        last = int(match[2] or first)
        for row in (first, last):
            _check_row(row, count)
        chosen.update(dict.fromkeys(range(first, last + 1)))
    return list(chosen)


def row_prompt(upload: Upload, row: int, mapping: FieldMapping | None = None) -> Prompt:
    """The prompt of one row, counted from 1, by `mapping` (default: the proposed one).

    Context and question of two fields are joined by an empty line, unless a line end is there
    already. Raises PromptError for a row or field that is not there, or holds no text.
    """
    _check_row(row, len(upload.rows), upload.name)
    mapping = mapping or propose_mapping(upload.fields)
    source = upload.name if len(upload.rows) == 1 else f"{upload.name} row {row}"
    if mapping.context is None and mapping.question is None:
        if mapping.prompt is None:
            raise PromptError(f"No field of {upload.name} is chosen as the prompt: choose one.")
        return typed_prompt(_value(upload, row, mapping.prompt), source)
    if mapping.context is None or mapping.question is None:
        raise PromptError(
            "Only one of context and question is chosen: choose a field for both, or one for the "
            "prompt."
        )
    context = _value(upload, row, mapping.context)
    question = _value(upload, row, mapping.question)
    if not context.endswith(("\n", "\r")) and not question.startswith(("\n", "\r")):
        context += "\n\n"
    return Prompt(context + question, len(context), source)


def row_prompts(
    upload: Upload, rows: Iterable[int], mapping: FieldMapping | None = None
) -> list[Prompt]:
    """The prompts of a batch; the first row that cannot be used is named by the PromptError."""
    return [row_prompt(upload, row, mapping) for row in rows]


def typed_prompt(text: str, source: str = "typed") -> Prompt:
    """A prompt as typed, split at the question line where it has one."""
    if not text.strip():
        raise PromptError("The prompt is empty: type some text or choose another row.")
    if "\0" in text:
        raise PromptError(
            f"The prompt ({source}) holds a NUL at character {text.index(chr(0)) + 1}, which is "
            "no text: remove it."
        )
    require_text(f"prompt ({source})", text)
    context, question = split_prompt(text)
    return Prompt(context + question, len(context) if question else None, source)


def split_prompt(text: str) -> tuple[str, str]:
    """Context and question around the line `---question---`; the question is empty without one.

    Raises PromptError when there are two such lines, or nothing on one side.
    """
    # Not splitlines: it also breaks at characters that no editor shows as a line end.
    lines = re.split(r"(?<=\n)|(?<=\r)(?!\n)", text)
    marks = [index for index, line in enumerate(lines) if line.strip() == QUESTION_LINE]
    if not marks:
        return text, ""
    if len(marks) > 1:
        raise PromptError(
            f"The line {QUESTION_LINE} stands on lines {marks[0] + 1} and {marks[1] + 1}: keep one."
        )
    context, question = "".join(lines[: marks[0]]), "".join(lines[marks[0] + 1 :])
    for side, name in ((context, "before"), (question, "after")):
        if not side.strip():
            raise PromptError(
                f"There is no text {name} the line {QUESTION_LINE} (line {marks[0] + 1}): add "
                "some, or remove the line."
            )
    return context, question


def _check_row(row: int, count: int, name: str = "the file") -> None:
    if not 1 <= row <= count:
        raise PromptError(
            f"Row {row} is not there, {name} has {count:,} {'row' if count == 1 else 'rows'}: "
            f"choose one from 1 to {count}."
        )


def _value(upload: Upload, row: int, field: str) -> str:
    values = upload.rows[row - 1]
    if field not in values:
        there = ", ".join(f"'{name}'" for name in list(values)[:8]) or "none"
        raise PromptError(
            f"Row {row} of {upload.name} has no field '{field}', it has {there}: choose another."
        )
    value = values[field]
    if not isinstance(value, str):
        raise PromptError(
            f"The field '{field}' in row {row} of {upload.name} is {kind_of(value)}, not text: "
            "choose another field."
        )
    if not value.strip():
        raise PromptError(
            f"The field '{field}' in row {row} of {upload.name} is empty: choose another row."
        )
    if "\0" in value:
        raise PromptError(
            f"The field '{field}' in row {row} of {upload.name} holds a NUL, which is no text: "
            "remove it."
        )
    require_text(f"field '{field}' in row {row} of {upload.name}", value)
    return value
