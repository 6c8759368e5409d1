"""The catalogue in a terminal and as a page of the documentation."""

from pathlib import Path

import pytest

from kvpolicies.__main__ import main, markdown
from kvpolicies.methods import METHODS

PAGE = Path(__file__).parents[2] / "docs" / "policies.md"


def test_the_documentation_lists_the_catalogue():
    assert PAGE.read_text() == markdown(METHODS), (
        "run `python -m kvpolicies --markdown > docs/policies.md`"
    )


def test_all_policies_in_one_table(capsys):
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [method.key for method in METHODS]


def test_one_policy_with_its_parameters(capsys):
    assert main(["lazyeviction"]) == 0
    shown = capsys.readouterr().out
    assert "| `alpha` | α |" in shown and "| 0.0005 |" in shown
    assert "one of released, printed" in shown


def test_a_name_that_there_is_not(capsys):
    assert main(["snapvk"]) == 1
    assert "there is no policy 'snapvk'" in capsys.readouterr().err


@pytest.mark.parametrize("key", [method.key for method in METHODS])
def test_every_policy_can_be_shown(key, capsys):
    assert main([key]) == 0
    assert f"## {key}" in capsys.readouterr().out
