"""What `analysis` raises for a reader: each message is one sentence that can be shown as it is."""

from __future__ import annotations

from typing import Any

from cache_store.errors import KVScopeError


class AnalysisError(KVScopeError):
    """The selection does not exist in this capture, or nothing can be shown for it."""


class NeedsJob(KVScopeError):
    """The figure costs too much to compute at once and no derived file holds it yet.

    kind, spec: what `backend.jobs` derives and `Capture.derived` then finds; seconds: an estimate;
    what: the sentence's subject.
    """

    def __init__(
        self, kind: str, spec: dict[str, Any], seconds: float, what: str = "This figure"
    ) -> None:
        super().__init__(
            f"{what} is computed once as a job of about {max(1, round(seconds))} s and then kept "
            "beside the run."
        )
        self.kind, self.spec, self.seconds = kind, spec, seconds
