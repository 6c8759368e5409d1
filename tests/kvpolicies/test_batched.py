"""Several caches in one forward against each of them alone, and entries that grow in place."""

import pytest
import torch

from kvpolicies.batched import feed_together
from kvpolicies.cache import EvictingCache
from kvpolicies.entries import ROOM, Entries
from kvpolicies.errors import PolicyError
from kvpolicies.passes import feed
from kvpolicies.policy import build
from tests.kvpolicies.models import prompt_ids, tiny

P, STEPS = 24, 5
POLICIES = [
    build("snapkv", budget=10, window=4),
    build("ada_snapkv", budget=12, window=4),
    build("h2o", budget=9),
    build("tova", budget=8),
    build("quest", budget=16),
    build("lazyeviction", budget=12, window=3),
    build("full"),
]


def caches(model, roomy=False):
    held = []
    for policy in POLICIES:
        cache = EvictingCache(policy, model)
        cache.roomy = roomy
        feed(model, cache, prompt_ids(P))
        held.append(cache)
    return held


@pytest.mark.parametrize("roomy", [False, True])
@torch.inference_mode()
def test_caches_fed_together_go_on_as_alone(roomy):
    model = tiny("llama")
    alone, together = caches(model), caches(model, roomy)
    for step in range(STEPS):
        tokens = [3 + step + number for number in range(len(POLICIES))]
        rows = feed_together(model, together, tokens)
        for cache, token, row in zip(alone, tokens, rows, strict=True):
            torch.testing.assert_close(feed(model, cache, torch.tensor([[token]])), row)
    for one, other in zip(alone, together, strict=True):
        assert [one.kept(layer) for layer in range(3)] == [other.kept(layer) for layer in range(3)]
        assert one.bytes == other.bytes and one.seen == other.seen == P + STEPS


@torch.inference_mode()
def test_caches_at_different_positions_are_refused():
    model = tiny("llama")
    first, second = caches(model)[:2]
    feed(model, first, torch.tensor([[1]]))
    with pytest.raises(PolicyError, match="fed together only at one position"):
        feed_together(model, [first, second], [1, 2])


def test_growing_in_place_equals_growing_by_copies_and_forks_go_their_own_way():
    torch.manual_seed(0)
    start = torch.randn(2, 3, 4)
    positions = torch.arange(3).expand(2, 3)
    plain, roomy = Entries(start, -start, positions), Entries(start, -start, positions)
    forks = []
    for step in range(ROOM + 5):  # the room is made anew once
        new = torch.randn(2, 1, 4)
        plain.append(new, -new, 3 + step)
        roomy.append_in_place(new, -new, 3 + step)
        if step in (0, ROOM):
            forks.append((roomy.fork(), roomy.keys.clone()))
    assert torch.equal(plain.keys, roomy.keys) and torch.equal(plain.values, roomy.values)
    assert torch.equal(plain.positions, roomy.positions)
    for fork, before in forks:
        assert torch.equal(fork.keys, before)
        other = torch.zeros(2, 1, 4)
        fork.append_in_place(other, other, len(fork))
        assert torch.equal(fork.keys[:, :-1], before) and not fork.keys[:, -1].any()
    assert torch.equal(plain.keys, roomy.keys)
