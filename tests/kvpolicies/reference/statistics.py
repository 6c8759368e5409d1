"""What the policies that evict while decoding remember per entry."""

import math

from .common import Array


def threshold(alpha: float | str, visible: int) -> float:
    """METHODS 1: `alpha` (absolute, or `"3/n"` as a multiple of uniform attention)."""
    if isinstance(alpha, str):
        multiple, over = alpha.split("/")
        if over.strip() != "n":
            raise ValueError(f"alpha is a number or like '3/n', not {alpha!r}")
        return float(multiple) / visible
    return alpha


class Position:
    """METHODS 2: newest is highest (StreamingLLM)."""

    alpha_gap = math.inf

    def born(self, position: int, step: int) -> None:
        pass

    def update(self, step: int, visible: list[int], weights: Array) -> None:
        pass

    def scores(self, candidates: list[int], kept: list[int], step: int) -> list[float]:
        return [float(position) for position in candidates]


class Cumulative(Position):
    """METHODS 2: sum of attention received so far; travels with the entry (H2O)."""

    def __init__(self) -> None:
        self.sums: dict[int, float] = {}

    def born(self, position: int, step: int) -> None:
        self.sums[position] = 0.0

    def update(self, step: int, visible: list[int], weights: Array) -> None:
        for position, weight in zip(visible, weights, strict=True):
            self.sums[position] += float(weight)

    def scores(self, candidates: list[int], kept: list[int], step: int) -> list[float]:
        return [self.sums[position] for position in candidates]


class Last(Position):
    """METHODS 2: attention of the newest query (TOVA). METHODS 1: the last prompt query only."""

    def update(self, step: int, visible: list[int], weights: Array) -> None:
        self.weights = dict(zip(visible, weights, strict=True))

    def scores(self, candidates: list[int], kept: list[int], step: int) -> list[float]:
        return [float(self.weights[position]) for position in candidates]


class TimeStamp(Position):
    """METHODS 2: last step at which attention ≥ `alpha` (RaaS); its first stamp is its birth."""

    def __init__(self, alpha: float | str) -> None:
        self.alpha = alpha
        self.stamps: dict[int, int] = {}
        self.alpha_gap = math.inf

    def born(self, position: int, step: int) -> None:
        self.stamps[position] = step

    def update(self, step: int, visible: list[int], weights: Array) -> None:
        level = threshold(self.alpha, len(visible))
        for position, weight in zip(visible, weights, strict=True):
            self.alpha_gap = min(self.alpha_gap, abs(float(weight) - level))
            if weight >= level:
                self.stamps[position] = step

    def scores(self, candidates: list[int], kept: list[int], step: int) -> list[float]:
        return [float(self.stamps[position]) for position in candidates]


def sigmoid(x: float) -> float:
    if x < 0:
        return math.exp(x) / (1 + math.exp(x))
    return 1 / (1 + math.exp(-x))


def falling(x: float, function: str) -> float:
    """METHODS 6: sigmoid 2σ(−x), exp `e^−x`, tanh `1 − tanh x`, log `1/(1 + ln(1 + x))`, inverse
    `1/(1 + x)`, for x ≥ 0; x may be infinite, where all of them are 0."""
    if math.isinf(x):
        return 0.0
    if function == "sigmoid":
        return 2 * sigmoid(-x)
    if function == "exp":
        return math.exp(-x)
    if function == "tanh":
        return 1 - math.tanh(x)
    if function == "log":
        return 1 / (1 + math.log(1 + x))
    if function == "inverse":
        return 1 / (1 + x)
    raise ValueError(f"no function called {function!r}")


def h1_score(t: int, ts: int, mri: int, form: str, function: str = "sigmoid") -> float:
    """METHODS 6, released: `H1 = 2σ(−(1 + (t − TS)/(MRI + 1e-5)))`; printed: `H1 = 2σ(−(t −
    TS)/MRI)` (limit 0 at MRI 0 when t > TS)."""
    if form == "released":
        return falling(1 + (t - ts) / (mri + 1e-5), function)
    if mri == 0:
        return falling(math.inf if t > ts else 0.0, function)
    return falling((t - ts) / mri, function)


def h2_score(mri: int, form: str, function: str = "sigmoid") -> float:
    """METHODS 6, released: `H2 = 2σ(−(MRI − 1))`; printed: `H2 = 2σ(−1/(MRI − 1))` (limit 0 at
    MRI 1); both `H2 = 0` if `MRI = 0`."""
    if mri == 0:
        return 0.0
    if form == "released":
        return falling(mri - 1, function)
    return falling(math.inf if mri == 1 else 1 / (mri - 1), function)


class Recurrence(Position):
    """METHODS 6: the prompt has `TS = 0, MRI = 0`; the token appended at step `t` has
    `TS = t − 1, MRI = 0`. At step `t`, entries with attention ≥ `alpha` get
    `MRI = max(MRI, t − TS)`, then `TS = t`."""

    def __init__(
        self,
        alpha: float | str,
        form: str,
        h1: bool = True,
        h2: bool = True,
        h1_function: str = "sigmoid",
        h2_function: str = "sigmoid",
    ) -> None:
        if form not in ("released", "printed"):
            raise ValueError(f"form is 'released' or 'printed', not {form!r}")
        self.alpha, self.form, self.h1, self.h2 = alpha, form, h1, h2
        self.h1_function, self.h2_function = h1_function, h2_function
        self.ts: dict[int, int] = {}
        self.mri: dict[int, int] = {}
        self.alpha_gap = math.inf

    def born(self, position: int, step: int) -> None:
        self.ts[position] = max(0, step - 1)
        self.mri[position] = 0

    def update(self, step: int, visible: list[int], weights: Array) -> None:
        if step < 1:
            return
        level = threshold(self.alpha, len(visible))
        for position, weight in zip(visible, weights, strict=True):
            self.alpha_gap = min(self.alpha_gap, abs(float(weight) - level))
            if weight >= level:
                self.mri[position] = max(self.mri[position], step - self.ts[position])
                self.ts[position] = step

    def scores(self, candidates: list[int], kept: list[int], step: int) -> list[float]:
        totals = []
        for position in candidates:
            total = 0.0
            if self.h1:
                total += h1_score(
                    step, self.ts[position], self.mri[position], self.form, self.h1_function
                )
            if self.h2:
                total += h2_score(self.mri[position], self.form, self.h2_function)
            totals.append(total)
        return totals
