"""The thread beside the model's: order, waiting, errors, and how the cores are shared."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from backend.stream import SHORTEST_QUEUE, Background


@pytest.fixture
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def test_calls_run_in_order_and_only_after_the_start() -> None:
    seen: list[int] = []
    with Background() as background:
        background.submit(seen.append, 1)
        background.submit(seen.append, 2)
        assert seen == []
        background.start()
        background.submit(seen.append, 3)
    assert seen == [1, 2, 3]


def test_a_full_queue_starts_the_work() -> None:
    done = threading.Event()
    with Background() as background:
        background.submit(done.set)
        for _ in range(SHORTEST_QUEUE):
            background.submit(lambda: None)
        assert done.wait(30)


@pytest.mark.usefixtures("four_threads")
def test_the_model_leaves_one_core_to_the_work_until_it_is_done() -> None:
    own: list[int] = []
    with Background() as background:
        assert torch.get_num_threads() == 4
        background.start()
        assert torch.get_num_threads() == 3
        background.submit(lambda: own.append(torch.get_num_threads()))
    assert own == [1]
    assert torch.get_num_threads() == 4


@pytest.mark.usefixtures("four_threads")
def test_the_first_error_stops_what_follows_and_is_raised() -> None:
    seen: list[int] = []

    def broken() -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"), Background() as background:
        background.submit(broken)
        background.submit(seen.append, 1)
        background.start()
    assert seen == [] and torch.get_num_threads() == 4


def test_an_error_of_the_block_drops_what_waits() -> None:
    seen: list[int] = []
    with pytest.raises(KeyError), Background() as background:
        background.submit(seen.append, 1)
        raise KeyError("cancelled")
    assert seen == []
