"""LazyEviction's score: H1, H2 and I as curves in both forms, with a head's tokens upon them."""

from __future__ import annotations

import numpy as np

from analysis.errors import AnalysisError
from analysis.figure import Axis, Figure, Note, Series
from analysis.lazy_decisions import FORMS
from analysis.text import token_pieces
from analysis.words import provenance, source_words, visible
from cache_store.reader import Capture

TERMS = ("I", "H1", "H2")
CURVE_POINTS = 160
PERCENTILES = (10, 50, 90)  # of the tokens' MRIs; each has a curve over the pause
EXAMPLE_MRIS = (1, 5, 20)  # where no token was ever active
NAMED = 3  # tokens told of a point that stands for several
_COLOURS = {"released": "#0072B2", "printed": "#D55E00"}
_DASHES = ("dot", "dash", "solid")

CURVE_NOTE = Note(
    "H1 falls while a token stays silent, the slower the longer its MRI; H2 is what its MRI alone "
    "is worth, and what has the lowest I = H1 + H2 is evicted. The printed H2 grows with MRI, "
    "against the paper's own text; the released one falls.",
    "released: H1 = 2σ(−(1 + (t − TS)/(MRI + 10⁻⁵))), H2 = 2σ(−(MRI − 1)); printed: "
    "H1 = 2σ(−(t − TS)/MRI), H2 = 2σ(−1/(MRI − 1)); I = H1 + H2; H2 = 0 at MRI 0",
    "LazyEviction, Figure 4(d), Eqs. 2 and 3, Tables 4 and 5",
)


def score_terms(
    pause: np.ndarray, mri: np.ndarray, form: str, h1: str = "sigmoid", h2: str = "sigmoid"
) -> dict[str, np.ndarray]:
    """H1, H2 and I = H1 + H2 of entries by their pause t - TS and MRI; float32 (n,) each."""
    import torch

    from kvpolicies.scores.recency import recurrence_score

    if form not in FORMS:
        raise AnalysisError(f"LazyEviction's forms are {' and '.join(FORMS)}, not {form!r}.")
    waited, longest = (torch.from_numpy(np.asarray(v, np.float32)) for v in (pause, mri))
    terms = {
        "H1": recurrence_score(waited, longest, form, h1, "off"),
        "H2": recurrence_score(waited, longest, form, "off", h2),
        "I": recurrence_score(waited, longest, form, h1, h2),
    }
    return {name: values.numpy() for name, values in terms.items()}


def score_curves(
    capture: Capture,
    pause: np.ndarray,
    mri: np.ndarray,
    term: str,
    *,
    step: int,
    layer: int,
    kv_head: int,
    h1: str = "sigmoid",
    h2: str = "sigmoid",
) -> Figure:
    """Lines of both forms with the tokens of one head as points: H1 or I over the pause, at a few
    of the tokens' own MRIs, or H2 over the MRI itself.

    pause, mri: (P + step,) of `state_at`. Entries that were never active have MRI 0. Tokens with
    the same pause and MRI are one point.
    """
    if term not in TERMS:
        raise AnalysisError(f"The score has the terms {', '.join(TERMS)}, not {term!r}.")
    over_mri = term == "H2"
    reach = max(10, int((mri if over_mri else pause).max(initial=0)))
    places = np.unique(np.linspace(0, reach, CURVE_POINTS).round())
    if over_mri:  # it changes at the first few, and is 0 at 0, where the logarithm ends
        places = np.unique(np.geomspace(1, reach, CURVE_POINTS).round())
    chosen = (0,) if over_mri else _curves(mri)
    lines, series = [], []
    for form in FORMS:
        for index, one in enumerate(chosen):
            nothing, same = np.zeros_like(places), np.full_like(places, one)
            waited, longest = (nothing, places) if over_mri else (places, same)
            lines.append(score_terms(waited, longest, form, h1, h2)[term])
            name = FORMS[form] if over_mri else f"{FORMS[form]}, MRI {one}"
            series.append(Series(name, _COLOURS[form], _DASHES[index + len(_DASHES) - len(chosen)]))
    drawn = mri > 0 if over_mri else mri >= 0
    text, waited, longest = _points(capture, pause, mri, drawn)
    values = [score_terms(waited, longest, form, h1, h2)[term] for form in FORMS]
    lines += [np.full(len(places), np.nan, np.float32)] * len(FORMS)
    series += [Series(f"tokens, {FORMS[form]}", _COLOURS[form]) for form in FORMS]
    curves = "" if over_mri else f"curves at {_mri_words(chosen, mri)}; "
    shapes = f"curve of H1: {h1}, of H2: {h2}"
    return Figure(
        "lines",
        f"{term} over the {'recurrence interval' if over_mri else 'pause'}",
        Axis("MRI", places, unit="steps", log=True)
        if over_mri
        else Axis("pause t − TS", places, unit="steps", range=(-0.01 * reach, 1.01 * reach)),
        Axis(term, range=(0.0, 2.05 if term == "I" else 1.05)),
        {
            "y": np.stack(lines),
            "point_x": np.tile(longest if over_mri else waited, 2).astype(np.float32),
            "point_y": np.concatenate(values),
            "point_series": np.repeat(np.arange(2) + len(lines) - 2, len(waited)),
        },
        series=tuple(series),
        point_text=tuple(text * 2),
        caption=(
            f"{len(pause):,} entries of KV head {kv_head} in layer {layer} after step {step:,}, "
            f"under the full cache, {int((mri == 0).sum()):,} of them never active"
            f"{', with H2 = 0' if over_mri else ''}; {curves}"
            f"{shapes}. {source_words(capture)}."
        ),
        alt=f"{term} of {len(pause):,} entries on its curves, in the released and printed form.",
        note=CURVE_NOTE,
        provenance=provenance(
            capture,
            figure="score_curves",
            term=term,
            step=step,
            layer=layer,
            kv_head=kv_head,
            h1=h1,
            h2=h2,
        ),
    )


def _curves(mri: np.ndarray) -> tuple[int, ...]:
    """The MRIs that have a curve: percentiles of those of the tokens."""
    active = mri[mri > 0]
    if not len(active):
        return EXAMPLE_MRIS
    return tuple(sorted({round(float(value)) for value in np.percentile(active, PERCENTILES)}))


def _mri_words(chosen: tuple[int, ...], mri: np.ndarray) -> str:
    values = "MRI " + ", ".join(f"{value:,}" for value in chosen)
    if not (mri > 0).any():
        return values
    return f"{values} (of the tokens' {', '.join(f'{n}th' for n in PERCENTILES)} percentile)"


def _points(
    capture: Capture, pause: np.ndarray, mri: np.ndarray, drawn: np.ndarray
) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Each pair of pause and MRI once, of what is drawn: which tokens have it, pauses and MRIs."""
    tokens = np.flatnonzero(drawn)
    pairs, which = np.unique(np.stack([pause[tokens], mri[tokens]], 1), axis=0, return_inverse=True)
    order = np.argsort(which.reshape(-1), kind="stable")
    starts = np.searchsorted(which.reshape(-1)[order], np.arange(len(pairs) + 1))
    pieces = token_pieces(capture)
    text = []
    for number, (waited, longest) in enumerate(pairs.tolist()):
        own = tokens[order[starts[number] : starts[number + 1]]]
        named = ", ".join(f"{place:,} {visible(pieces[place])}" for place in own[:NAMED])
        more = f" and {len(own) - NAMED:,} more" if len(own) > NAMED else ""
        text.append(f"{named}{more} · pause {waited}, MRI {longest}")
    return text, pairs[:, 0], pairs[:, 1]
