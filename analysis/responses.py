"""The response of a live run beside the one of the full cache, token by token."""

from __future__ import annotations

import math
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

import pandas as pd

from analysis.comparison import NO_STEPS
from analysis.figure import Note
from analysis.words import source_words
from cache_store.reader import Capture

if TYPE_CHECKING:
    from analysis.replays import PolicyRun

KINDS = {"equal": "agrees", "replace": "differs", "insert": "inserted", "delete": "deleted"}
DIFF_NOTE = Note(
    "The response that the model wrote under the policy, beside the one it wrote with the full "
    "cache. After the first token that differs both go their own way, so what follows says how "
    "the meaning held, not how many further mistakes the policy made.",
    "longest matching runs of token ids (Ratcliff and Obershelp); agreement is the share of steps "
    "with the same token",
    "LAQ, Figure 7: responses side by side; agreement: docs/methods.md, section 7",
)


@dataclass(frozen=True)
class DiffPart:
    """A stretch of the two responses: `kind` agrees, differs, inserted (under the policy only) or
    deleted (full cache only); its tokens on either side and the step of the first of each."""

    kind: str
    full: tuple[str, ...]
    policy: tuple[str, ...]
    full_step: int
    policy_step: int


@dataclass(frozen=True)
class ResponseDiff:
    """Both responses, token by token. first_difference is a step, None where there is none."""

    parts: tuple[DiffPart, ...]
    first_difference: int | None
    agreement: float
    caption: str
    alt: str
    note: Note = DIFF_NOTE

    def table(self) -> pd.DataFrame:
        """One row per part: kind, first steps, and the text on either side."""
        columns = ["kind", "full_step", "policy_step", "full", "policy"]
        rows = [
            (part.kind, part.full_step, part.policy_step, "".join(part.full), "".join(part.policy))
            for part in self.parts
        ]
        return pd.DataFrame(rows, columns=columns)


def response_diff(capture: Capture, run: PolicyRun) -> ResponseDiff:
    """The response with the full cache and under the policy as one token-level diff.

    Tokens are matched by id. Works for responses of different lengths and for none at all.
    """
    frame = run.token.sort_values("step")
    full_ids, full = _response(frame, "full_")
    ids, policy = _response(frame, "")
    matcher = SequenceMatcher(None, full_ids, ids, autojunk=False)
    parts = tuple(
        DiffPart(KINDS[tag], tuple(full[a:b]), tuple(policy[c:d]), a + 1, c + 1)
        for tag, a, b, c, d in matcher.get_opcodes()
    )
    longest = max(len(full_ids), len(ids))
    same = [one == other for one, other in zip(full_ids, ids, strict=False)]
    first = same.index(False) + 1 if False in same else len(same) + 1
    different = first if first <= longest else None
    agreement = sum(same) / longest if longest else math.nan
    if not longest:
        told = NO_STEPS
    elif different is None:
        told = f"All {longest:,} tokens agree."
    else:
        told = f"The first differing token is step {different:,} of {longest:,}; "
        told += f"{agreement:.3g} of the tokens agree step by step."
    counts = {kind: 0 for kind in KINDS.values()}
    for part in parts:
        counts[part.kind] += max(len(part.full), len(part.policy))
    listed = ", ".join(f"{count:,} {kind}" for kind, count in counts.items() if count)
    return ResponseDiff(
        parts,
        different,
        agreement,
        caption=f"{run.title} against the full cache. {told} {source_words(capture)}.",
        alt=f"Responses compared token by token: {listed or 'nothing to compare'}. {told}",
    )


def _response(frame: pd.DataFrame, side: str) -> tuple[list[int], list[str]]:
    """Ids and texts of one side, without the steps that it did not reach."""
    reached = frame[frame[f"{side}token_id"].notna()]
    texts = ["" if text is None or text != text else str(text) for text in reached[f"{side}text"]]
    return [int(token) for token in reached[f"{side}token_id"]], texts
