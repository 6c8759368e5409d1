"""Uploaded sets of prompts in the forms people have: RULER and LongBench JSONL, rows of context,
question and answers, or plain prompts.

Which form a row has is told by its fields:

- RULER: `input` and `outputs`, with `answer_prefix` where the file has one. The last line of the
  input is the question.
- LongBench: `context`, `input` and `answers`; the score and the length of the answer follow from
  `dataset`. Its prompt templates are not applied: the question is asked plainly after the context.
- `context`, `question` and `answers` (or `answer`), with `answer_prefix` as in kvpress's sets.
- `prompt` (or `text`): a prompt without references, scored by agreement with the full cache.

Every form may also give `max_new_tokens` and `scoring`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from backend.spec import PromptError
from backend.study.scores import SCORES
from backend.study.tasks import Example
from backend.uploads import Upload, kind_of, parse, upload_limit

DEFAULT_NEW_TOKENS = 128
MAX_NEW_TOKENS = 32_768

# LongBench's score and answer length by dataset; where its metric has no equal here (code edits,
# classes), the nearest one
LONGBENCH: dict[str, tuple[str, int]] = {
    "narrativeqa": ("f1", 128),
    "qasper": ("f1", 128),
    "multifieldqa_en": ("f1", 64),
    "multifieldqa_zh": ("f1", 64),
    "hotpotqa": ("f1", 32),
    "2wikimqa": ("f1", 32),
    "musique": ("f1", 32),
    "dureader": ("rouge_l", 128),
    "gov_report": ("rouge_l", 512),
    "qmsum": ("rouge_l", 512),
    "multi_news": ("rouge_l", 512),
    "vcsum": ("f1", 512),
    "trec": ("substring_any", 64),
    "triviaqa": ("f1", 32),
    "samsum": ("rouge_l", 128),
    "lsht": ("substring_any", 64),
    "passage_count": ("final_number", 32),
    "passage_retrieval_en": ("substring_any", 32),
    "passage_retrieval_zh": ("substring_any", 32),
    "lcc": ("f1", 64),
    "repobench-p": ("f1", 64),
}
ASKED_AS_IT_IS = ("trec", "triviaqa", "samsum", "lsht", "lcc", "repobench-p")  # examples, code


def read_set(source: Path | bytes, name: str) -> list[Example]:
    """The prompts of a file (or its bytes) called `name`, one per row.

    Raises PromptError, one sentence with the line (or row) and field, for what cannot be used.
    """
    data = source if isinstance(source, bytes) else _bytes(source)
    upload = parse(name, data)
    stem = PurePath(upload.name).stem
    lines = _lines(upload, data)
    return [
        _Row(row, f"{lines[number]} of {upload.name}", stem, number).example()
        for number, row in enumerate(upload.rows)
    ]


def _bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(upload_limit() + 1)  # `parse` refuses the longer ones
    except OSError as error:
        raise PromptError(
            f"The set {path} cannot be read ({error.strerror}): give a file that can."
        ) from error


def _lines(upload: Upload, data: bytes) -> list[str]:
    """Where each row stands in the file, for messages."""
    if upload.name.lower().endswith(".jsonl"):
        text = data.decode("utf-8", "replace").removeprefix("\ufeff")
        filled = [i for i, line in enumerate(text.split("\n"), start=1) if line.strip()]
        if len(filled) == len(upload.rows):
            return [f"Line {number}" for number in filled]
    return [f"Row {number}" for number in range(1, len(upload.rows) + 1)]


class _Row:
    """One row of a set on its way to an example."""

    def __init__(self, row: Mapping[str, Any], where: str, stem: str, number: int) -> None:
        self.row, self.where, self.stem, self.number = row, where, stem, number

    def example(self) -> Example:
        row = self.row
        if "outputs" in row:
            return self._ruler()
        if "context" in row and "input" in row and "question" not in row:
            return self._longbench()
        if "context" in row:
            answers = self._texts("answers" if "answers" in row else "answer")
            question = self._text("question") + self._text("answer_prefix")
            return self._made(self._needed("context"), question, answers, "f1")
        for field in ("prompt", "text", "input"):
            if field in row:
                return self._made(self._needed(field), "", (), "")
        raise PromptError(
            f"{self.where} has the fields {', '.join(map(str, row))}: give context, question and "
            "answers, RULER's input and outputs, or a prompt."
        )

    def _ruler(self) -> Example:
        whole = self._needed("input")
        context, line_end, question = whole.rstrip("\n").rpartition("\n")
        if not context.strip():
            context, line_end, question = whole, "", ""
        scoring = "substring_any" if self._task().startswith("qa") else "substring_share"
        asked = line_end + question + self._text("answer_prefix")
        return self._made(context, asked, self._texts("outputs"), scoring)

    def _longbench(self) -> Example:
        asked = self._text("input")
        dataset = self._task().removesuffix("_e")
        scoring, new_tokens = LONGBENCH.get(dataset, ("f1", DEFAULT_NEW_TOKENS))
        if dataset in ASKED_AS_IT_IS:
            question = f"\n{asked}" if asked else ""
        else:
            question = f"\n\nQuestion: {asked}\nAnswer:" if asked else "\n\nAnswer:"
        return self._made(
            self._needed("context"), question, self._texts("answers"), scoring, new_tokens
        )

    def _made(
        self,
        context: str,
        question: str,
        answers: tuple[str, ...],
        scoring: str,
        new_tokens: int = DEFAULT_NEW_TOKENS,
    ) -> Example:
        scoring = self._text("scoring") or (scoring if answers else "")
        if scoring and scoring not in SCORES:
            raise PromptError(
                f"{self.where}: scoring is '{scoring}', use one of {', '.join(SCORES)}."
            )
        if scoring and not answers:
            raise PromptError(f"{self.where}: {scoring} needs answers, and there are none.")
        return Example(
            f"{self.stem}-{self.number}",
            self._task(),
            context,
            question,
            answers,
            scoring,
            self._new_tokens(new_tokens),
            self._facts(),
        )

    def _task(self) -> str:
        return self._text("task") or self._text("dataset") or self.stem

    def _facts(self) -> dict[str, Any]:
        """The row's own id, language and length, and how deep RULER's answer stands."""
        row = self.row
        kept: dict[str, Any] = {
            field: row[field]
            for field in ("_id", "id", "index", "language")
            if type(row.get(field)) in (str, int)
        }
        place, length = row.get("token_position_answer"), row.get("length")
        if type(length) is int and length > 0:
            kept["length"] = length
            if type(place) is int and 0 <= place <= length:
                kept["depth"] = round(place / length, 2)
        return kept

    def _new_tokens(self, default: int) -> int:
        value = self.row.get("max_new_tokens", default)
        if type(value) is not int or not 1 <= value <= MAX_NEW_TOKENS:
            raise PromptError(
                f"{self.where}: max_new_tokens is {_shown(value)}, give a whole number from 1 to "
                f"{MAX_NEW_TOKENS:,}."
            )
        return value

    def _text(self, field: str) -> str:
        value = self.row.get(field)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise PromptError(f"{self.where}: {field} is {kind_of(value)}, give a text.")
        return value

    def _needed(self, field: str) -> str:
        text = self._text(field)
        if not text.strip():
            raise PromptError(f"{self.where}: {field} is empty, give a text.")
        return text

    def _texts(self, field: str) -> tuple[str, ...]:
        """References: a list of texts, or one text; none at all is allowed."""
        value = self.row.get(field)
        values = value if isinstance(value, list) else [] if value is None else [value]
        for item in values:
            if not isinstance(item, str):
                raise PromptError(
                    f"{self.where}: {field} holds {kind_of(item)}, give a text or a list of texts."
                )
            if not item.strip():
                raise PromptError(f"{self.where}: {field} holds an empty text, remove it.")
        return tuple(values)


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:39]}…"
