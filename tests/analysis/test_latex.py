"""Text for LaTeX: specials are escaped, and nothing a token says is a command."""

from __future__ import annotations

import re

import pytest

from analysis.latex import escaped
from tests.analysis.figures import HOSTILE


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("50% of a_1 & #5", r"50\% of a\_1 \& \#5"),
        ("$x^2$ {y}", r"\$x\textasciicircum{}2\$ \{y\}"),
        (r"\alpha~", r"\textbackslash{}alpha\textasciitilde{}"),
        ("<b>|", r"\textless{}b\textgreater{}\textbar{}"),
        ("4–8 × 2, run-time --", r"4--8 \ensuremath{\times} 2, run-time -{}-"),
        ("α = 10⁻³", r"\ensuremath{\alpha} = 10\ensuremath{^{-}}\ensuremath{^{3}}"),
        ("two\nlines\there", "two lines here"),
        ("“said” it's", "``said'' it'{}s"),
        ("é 😀 ש", "é [U+1F600] [U+05E9]"),
        ("a\x00\u202eb", "a[U+0000][U+202E]b"),
    ],
)
def test_signs_are_set_as_they_are(text: str, latex: str) -> None:
    assert escaped(text) == latex


@pytest.mark.parametrize("text", HOSTILE)
def test_only_our_own_commands_and_balanced_braces_are_left(text: str) -> None:
    line = escaped(text)
    commands = set(re.findall(r"\\([A-Za-z]+)", line))
    assert commands <= {
        *("textbackslash", "textless", "textgreater", "textasciicircum", "textasciitilde", "char"),
        *("ensuremath", "circ", "textbar"),
    }
    bare = re.sub(r"\\[^A-Za-z]", "", line)
    assert not set("$&#%_^~<>|\n") & set(bare)
    assert bare.count("{") == bare.count("}")
