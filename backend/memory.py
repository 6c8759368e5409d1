"""The largest memory a stretch of work took."""

from __future__ import annotations

import contextlib
import resource
import sys
from pathlib import Path

import torch


class PeakMemory:
    """Measures from its creation on. Bytes of the device on CUDA, of this process elsewhere.

    Where the system cannot forget an earlier peak, that of the process's whole life counts.
    """

    def __init__(self, device: str) -> None:
        self._cuda = device if device.startswith("cuda") else None
        if self._cuda:
            torch.cuda.reset_peak_memory_stats(self._cuda)
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM to what is in use now

    def bytes(self) -> int:
        if self._cuda:
            return int(torch.cuda.max_memory_allocated(self._cuda))
        with contextlib.suppress(OSError):
            for line in Path("/proc/self/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return int(peak if sys.platform == "darwin" else peak * 1024)


def out_of_memory(error: BaseException) -> bool:
    """Whether torch could not get the memory it asked for, on a device or on this machine."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
