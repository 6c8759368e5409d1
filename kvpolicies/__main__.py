"""The catalogue on the command line: `python -m kvpolicies`, `python -m kvpolicies snapkv`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from kvpolicies.errors import PolicyError
from kvpolicies.methods import Method, catalogue
from kvpolicies.policy import MethodParameter, parameters_of


def main(argv: Sequence[str] | None = None) -> int:
    """Prints one method, or all of them; returns 0, or 1 for a name that there is not."""
    parser = argparse.ArgumentParser(
        prog="python -m kvpolicies", description="List the eviction policies and their parameters."
    )
    parser.add_argument("key", nargs="?", help="one policy; without it, all of them in a table")
    parser.add_argument("--markdown", action="store_true", help="all policies as docs/policies.md")
    arguments = parser.parse_args(argv)
    try:
        methods = catalogue()
        if arguments.markdown:
            print(markdown(methods.values()), end="")
        elif arguments.key is None:
            width = max(map(len, methods))
            for method in methods.values():
                print(f"{method.key:<{width}}  {method.idea}")
        elif arguments.key in methods:
            print(section(methods[arguments.key]))
        else:
            raise PolicyError(
                f"there is no policy {arguments.key!r}; the catalogue has {', '.join(methods)}"
            )
    except PolicyError as error:
        print(f"kvpolicies: {error}", file=sys.stderr)
        return 1
    return 0


def markdown(methods: Any) -> str:
    """All methods as one Markdown page: a table of their choices, then a section each."""
    methods = list(methods)
    rows = [
        f"| [`{method.key}`](#{method.key}) | {method.title} | {method.score} | "
        f"{method.allocate} | {method.schedule} | {', '.join(method.tables) or '–'} |"
        for method in methods
    ]
    head = [
        "# The policies",
        "",
        "Written by `python -m kvpolicies --markdown` from the catalogue. Every policy is a score, "
        "an allocation and a schedule; [methods.md](methods.md) defines them.",
        "",
        "| key | policy | score | allocation | schedule | in the tables of |",
        "|:--|:--|:--|:--|:--|:--|",
        *rows,
    ]
    return "\n".join([*head, "", *(section(method) + "\n" for method in methods)])


def section(method: Method) -> str:
    """One method: its idea, its paper, what it needs, its parameters and its other readings."""
    lines = [f"## {method.key}", "", f"**{method.title}.** {method.idea}"]
    if method.paper:
        lines += ["", f"Paper: {method.paper}."]
    shape = (
        "equally many entries in the heads of a layer"
        if method.structured
        else ("unequal numbers of entries in the heads of a layer")
    )
    lines += ["", f"Keeps {shape}; needs {', '.join(method.needs)}."]
    if method.note:
        lines += ["", method.note]
    parameters = parameters_of(method)
    if parameters:
        lines += [
            "",
            "| parameter | symbol | meaning | range | default | paper |",
            "|:--|:--|:--|:--|--:|--:|",
            *map(_row, parameters),
        ]
    for name, preset in method.presets.items():
        lines += ["", f'`preset="{name}"`: {preset.difference}']
    return "\n".join(lines)


def _row(listed: MethodParameter) -> str:
    parameter = listed.parameter
    default = listed.formula or _value(listed.default)
    cells = (
        f"`{parameter.name}`",
        parameter.symbol,
        parameter.meaning,
        parameter.range,
        default,
        _value(listed.paper) if listed.formula is None else listed.formula,
    )
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def _value(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
