"""What goes into a file as Arrow arrays."""

import numpy as np
import pytest

from cache_store.schema import view_array


@pytest.mark.parametrize("width", [1, 2, 5, 6, 7, 40])
def test_rows_of_any_length_are_told_without_a_copy(width: int) -> None:
    """Short values stand in the views themselves; expected is the plain list of bytes."""
    rng = np.random.default_rng(width)
    parts = [rng.standard_normal((2, 3, width)).astype(np.float16) for _ in range(2)]
    lengths = [np.array([1, (width + 1) // 2, width]), np.array([width, 1, 1])]
    plain = [
        part[head, row, : counts[row]].tobytes()
        for part, counts in zip(parts, lengths, strict=True)
        for head in range(2)
        for row in range(3)
    ]
    order = rng.permutation(len(plain))
    array = view_array(parts, lengths, order)
    array.validate(full=True)
    assert array.to_pylist() == [plain[place] for place in order]
