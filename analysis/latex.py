"""Text for LaTeX: whatever a reader or a token says is set as it is and never obeyed."""

from __future__ import annotations

import re
import unicodedata

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"{\char34}",
    "'": r"'{}",  # two of them are no closing quotation mark
    "`": r"\textasciigrave{}",
    "-": r"-{}",  # nor two hyphens a dash
    "–": "--",
    "—": "---",
    "…": r"\ldots{}",
    "“": "``",
    "”": "''",
    "‘": "`",
    "’": "'",
    "␣": r"\textvisiblespace{}",
}
_GREEK_LETTERS = "αβγδεζηθικλμνξπρστυφχψω"
_GREEK = (
    *("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"),
    *("lambda", "mu", "nu", "xi", "pi", "rho", "sigma", "tau", "upsilon", "phi", "chi", "psi"),
    "omega",
)
_IN_MATH = {
    "×": r"\times",
    "·": r"\cdot",
    "−": "-",
    "±": r"\pm",
    "≤": r"\leq",
    "≥": r"\geq",
    "≠": r"\neq",
    "≈": r"\approx",
    "→": r"\rightarrow",
    "←": r"\leftarrow",
    "∞": r"\infty",
    "√": r"\surd",
    "«": r"\ll",
    "»": r"\gg",
    "Σ": r"\Sigma",
    "Δ": r"\Delta",
    "⏎": r"\hookleftarrow",
    "⇥": r"\mapsto",
    "◌": r"\circ",
    "ℓ": r"\ell",
    **{letter: f"\\{name}" for letter, name in zip(_GREEK_LETTERS, _GREEK, strict=True)},
    **{power: f"^{{{digit}}}" for digit, power in zip("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻", strict=True)},
    **{power: f"_{{{digit}}}" for digit, power in zip("0123456789", "₀₁₂₃₄₅₆₇₈₉", strict=True)},
}
_KNOWN = _SPECIAL | {sign: rf"\ensuremath{{{name}}}" for sign, name in _IN_MATH.items()}
_HYPHEN = re.compile(r"-\{\}(?!-)")


def escaped(text: object) -> str:
    """One line of LaTeX text that every engine sets; a sign that no common font has is named."""
    line = " ".join(str(text).split())
    return _HYPHEN.sub("-", "".join(_KNOWN.get(sign) or _sign(sign) for sign in line))


def _sign(sign: str) -> str:
    """A letter of the Latin alphabets as it is, anything else by its code point."""
    code = ord(sign)
    if 0x20 <= code < 0x7F or (0xA1 <= code < 0x180 and unicodedata.category(sign) != "Cf"):
        return sign
    return f"[U+{code:04X}]"
