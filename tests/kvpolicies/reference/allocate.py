"""Sharing a budget over layers and heads (METHODS 3)."""

import math

from .common import Array, best, margin, whole


def pyramid(budget: int, window: int, span: int, layers: int, beta: int = 20) -> list[int]:
    """METHODS 3: `c = B − w`, `min = c // beta`, `max = 2c − min`; if `max > N − w` then
    `max = N − w`, `min = 2c − max`; `step = (max − min) // (L − 1)`; layer ℓ keeps `max − ℓ·step`
    besides its window; uniform if `N < 2c` or `L = 1`."""
    c = budget - window
    if span < 2 * c or layers == 1:
        return [c] * layers
    least = c // beta
    most = 2 * c - least
    if most > span - window:
        most = span - window
        least = 2 * c - most
    step = (most - least) // (layers - 1)
    return [most - layer * step for layer in range(layers)]


def global_top(scores: list[list[float]], count: int) -> tuple[list[list[int]], float]:
    """Indices of the `count` best over several lists together, per list, and the margin.

    Ties: the earlier list, then the lower index (a stable sort of the lists laid end to end).
    """
    flat = [(list_, i) for list_ in range(len(scores)) for i in range(len(scores[list_]))]
    values = [scores[list_][i] for list_, i in flat]
    chosen = best(range(len(flat)), values, count)
    picked: list[list[int]] = [[] for _ in scores]
    for index in chosen:
        list_, i = flat[index]
        picked[list_].append(i)
    return picked, margin(range(len(flat)), values, chosen)


def head_adaptive_counts(
    scores: list[list[float]], c: int, alpha_floor: float
) -> tuple[list[int], float]:
    """METHODS 3: `n_h` = how many of head h's scores are among the layer's global top `H·c`; head
    h keeps `round(n_h·(1 − alpha_floor) + ⌊alpha_floor·c⌋)` besides the window, the largest
    remainders adjusted so that the layer's total is `H·c`."""
    heads = len(scores)
    picked, gap = global_top(scores, heads * c)
    exact = [len(p) * (1 - alpha_floor) + whole(alpha_floor * c) for p in picked]
    counts = [min(math.floor(x + 0.5 + 1e-9), len(s)) for x, s in zip(exact, scores, strict=True)]
    while sum(counts) < heads * c:  # one more for the head furthest below its exact share
        room = [h for h in range(heads) if counts[h] < len(scores[h])]
        counts[min(room, key=lambda h: (-round(exact[h] - counts[h], 9), h))] += 1
    while sum(counts) > heads * c:  # one less for the head furthest above it
        room = [h for h in range(heads) if counts[h] > 0]
        counts[min(room, key=lambda h: (round(exact[h] - counts[h], 9), -h))] -= 1
    return counts, gap


def head_adaptive(
    scores: list[list[float]], c: int, alpha_floor: float
) -> tuple[list[list[int]], float]:
    """Each head's own best, in the numbers of `head_adaptive_counts`; indices per head."""
    counts, gap = head_adaptive_counts(scores, c, alpha_floor)
    return [best(range(len(s)), s, n) for s, n in zip(scores, counts, strict=True)], gap


def head_adaptive_kvpress(
    scores: list[list[float]], c: int, pinned: int
) -> tuple[list[list[int]], float]:
    """METHODS 3: `preset="kvpress"` pins each head's top `⌊alpha_floor·B⌋` instead and prunes the
    rest globally (here: of the scored entries, the window coming on top)."""
    first = [best(range(len(s)), s, min(pinned, c)) for s in scores]
    rest = [[i for i in range(len(s)) if i not in f] for s, f in zip(scores, first, strict=True)]
    values = [[s[i] for i in r] for s, r in zip(scores, rest, strict=True)]
    left = len(scores) * c - sum(len(f) for f in first)
    picked, gap = global_top(values, left)
    kept = [sorted(f + [r[i] for i in p]) for f, r, p in zip(first, rest, picked, strict=True)]
    pins = [margin(range(len(s)), s, f) for s, f in zip(scores, first, strict=True)]
    return kept, min([gap, *pins])


def as_lists(scores: list[Array]) -> list[list[float]]:
    return [[float(x) for x in s] for s in scores]
