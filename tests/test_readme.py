"""The README says what the code does: its data model, settings, commands and measured claims."""

import re
import shlex
from pathlib import Path

import pytest

from analysis.__main__ import parser
from cache_store import schema

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
ROOMS = ("analysis", "backend", "cache_store", "kvpolicies", "pages")


def block(name: str) -> str:
    start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    return README[README.index(start) + len(start) : README.index(end)].strip()


def test_the_data_model_is_the_schemas():
    assert block("data model") == schema.markdown().strip(), (
        "paste the output of `python -c 'from cache_store import schema; print(schema.markdown())'`"
    )


@pytest.mark.parametrize("room", ROOMS)
def test_every_setting_is_explained(room):
    used = {
        name
        for path in (ROOT / room).rglob("*.py")
        for name in re.findall(r"\bKVSCOPE_[A-Z_]+", path.read_text())
    }
    missing = sorted(name for name in used if f"`{name}`" not in README)
    assert not missing, f"the README does not explain {missing}"


def test_every_make_target_it_names_exists():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`?make ([a-z]+)`?", README)) <= targets


def test_the_links_of_the_readme_lead_somewhere():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_the_export_commands_are_understood():
    commands = re.findall(r"^python -m analysis (.+)$", README.replace("\\\n", " "), re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        assert parser().parse_args(shlex.split(command)).spec
