"""docs/studies.md names every field and column, and its example is a specification."""

import re
from pathlib import Path

import pytest

from backend.study.spec import StudySpec
from cache_store.study import COLUMNS

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "studies.md").read_text()


def test_the_example_can_be_read() -> None:
    example = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert example is not None
    spec = StudySpec.from_toml(example[1])
    # 8 prompts at 2 lengths and 3 depths, and 20 rows
    assert spec.examples({"questions.jsonl": 30}) == 48 + 20
    # the full cache, two policies at three ratios, LagKV
    assert len(spec.cells()) == 1 + 2 * 3 + 1


@pytest.mark.parametrize("name", [*COLUMNS, *StudySpec.__dataclass_fields__])
def test_every_field_and_column_is_explained(name: str) -> None:
    rows = re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE)
    assert any(f"`{name}`" in row for row in rows)
