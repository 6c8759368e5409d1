"""Every row of the catalogue against the naive reference, over generated cases.

Both were written from docs/methods.md without a look at the other. Decisions that hang on less than
1e-5 are forgiven: the product works in float32, the reference in float64.
"""

from __future__ import annotations

import dataclasses
import itertools
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpolicies import PolicyError, build, catalogue, replay
from tests.kvpolicies import reference
from tests.kvpolicies.cases import SMALL, UNBUDGETED, make_trace

TOLERANCE = 1e-5
MAX_EXAMPLES = int(os.environ.get("KVSCOPE_EXAMPLES", "15"))
NAMES = {  # the reference's own names for a few options
    "quest": {"skip_layers": "dense_layers"},
    "infllm": {"sink": "init", "recent": "local", "page": "block"},
    "duo_attention": {"streaming": "share"},
}
FIXED = {"knorm": ("skip_layers",), "l2_lag": ("skip_layers",), "quest": ("pages",)}
ROWS = [key for key in catalogue() if key != "random"]  # seeded by each in its own way
shapes = st.fixed_dictionaries(
    {
        "layers": st.integers(1, 3),
        "kv_heads": st.integers(1, 3),
        "group": st.integers(1, 3),
        "prompt": st.integers(1, 22),
        "response": st.integers(0, 8),
        "dim": st.sampled_from([2, 4]),
        "seed": st.integers(0, 9999),
    }
)
SCOPED = ("snapkv", "pyramidkv", "ada_snapkv", "expected_attention", "knorm", "laq_pp", "laq")
CHOICES = {
    "h2o": {"group_reduce": ["mean", "max", "sum"]},
    "streaming_llm": {"sink": [0, 1, 4]},
    "snapkv": {"window": [1, 3, 30], "kernel": [1, 3, 4, 7], "pool": ["max", "mean"]},
    "pyramidkv": {"window": [1, 2, 8], "beta": [2, 4, 20]},
    "ada_snapkv": {"window": [1, 3, 30], "alpha_floor": [0.0, 0.2, 0.55, 1.0]},
    "ada_expected_attention": {"alpha_floor": [0.2, 0.5]},
    "laq": {"mask": ["correct", "released"], "kernel": [1, 3, 7]},
    "laq_pp": {"mask": ["correct", "released"], "window": [1, 4, 8]},
    "lagkv": {"keep_ratio": [0.1, 0.5, 1.0], "lag": [1, 3, 4], "sink": [0, 2]},
    "localkv": {"keep_ratio": [0.1, 0.5], "lag": [2, 4]},
    "lazyeviction": {"form": ["released", "printed"], "window": [1, 3, 4], "alpha": [0.05, "1/n"]},
    "h2o_window": {"window": [1, 4]},
    "raas": {"alpha": [0.05, "1/n"]},
    "raas_window": {"window": [1, 4], "alpha": [0.1, "1/n"]},
    "r_kv": {"window": [1, 2, 3], "interval": [1, 3], "similarity": [0.2, 0.5, 0.9]},
    "kvcompose": {
        "source": ["context", "self", "question"],
        "agg_task": ["max", "mean"],
        "agg_group": ["max", "mean"],
        "agg_head": ["max", "mean"],
        "min_per_layer": [0, 1],
        "match": ["paper", "kvpress"],
        "value_norm": ["none", "value", "output"],
    },
    "kvcompose_unstructured": {"source": ["context", "self"]},
    "kvzip": {"chunk": [3, 7, 100], "group_reduce": ["mean", "max"]},
    "sage_kv": {"view": ["query_head", "union"]},
    "duo_attention": {"sink": [0, 2], "recent": [1, 4], "streaming": [0.0, 0.5, 0.7]},
    "quest": {"page": [1, 3, 4]},
    "infllm": {"page": [2, 4], "representatives": [1, 3]},
    "knorm": {},
    "belady": {"alpha": [0.05, "2/n"], "schedule": ["after_prefill", "every_step"]},
    "oracle": {"schedule": ["after_prefill", "every_step"]},
}


def both(key, shape, budget, context, granularity, options, softcap):
    """Product and reference on the same states; None where both refuse."""
    trace = dataclasses.replace(make_trace(**shape, context=context), scaling=0.4, softcap=softcap)
    mine = {**SMALL[key], **options}
    theirs = {
        NAMES.get(key, {}).get(name, name): value
        for name, value in mine.items()
        if name not in FIXED.get(key, ())
    }
    if key == "knorm":
        mine["skip_layers"] = 2
    if key == "l2_lag":
        mine["skip_layers"] = 2
    if key == "quest":
        mine.pop("pages")
        theirs["dense_layers"] = mine["skip_layers"]
    for name in ("match", "value_norm"):
        if name in theirs:
            theirs[name] = {"value": "v", "output": "vo", "kvpress": "kvpress"}.get(theirs[name])
    if key not in UNBUDGETED and "compression_ratio" not in mine:
        mine["budget"] = theirs["budget"] = budget
    refused = False
    try:
        product = replay(build(key, **mine, granularity=granularity), trace)
    except PolicyError:
        refused = True
    arguments = (trace.queries, trace.keys, trace.values, trace.prompt_length)
    try:
        naive = reference.replay(
            key,
            *arguments,
            context_length=trace.context_length,
            lookahead=trace.lookahead,
            second_reading=trace.second_reading,
            rotary=trace.rotary,
            output_norms=trace.output_norms,
            scaling=0.4,
            softcap=softcap,
            granularity=granularity,
            **theirs,
        )
    except ValueError:
        assert refused, "the reference refuses what the product does"
        return None
    assert not refused, "the product refuses what the reference does"
    return trace, product, naive


def compare(key, product, naive):
    mine = product.evicted_at.numpy()
    theirs = naive.evicted_at
    if mine.shape != theirs.shape:  # TOVA: one set per layer, however many heads
        theirs = np.repeat(theirs, mine.shape[1] // theirs.shape[1], 1)
    shaky = [
        decision
        for decision in naive.decisions
        if decision.margin < TOLERANCE or decision.alpha_gap < TOLERANCE
    ]
    if (mine != theirs).any():
        first = min(mine[mine != theirs].min(), theirs[mine != theirs].min())
        assert any(decision.step <= first for decision in shaky), (
            f"{key} differs at {np.argwhere(mine != theirs)[:5].tolist()}: "
            f"{mine[mine != theirs][:5]} against {theirs[mine != theirs][:5]}"
        )
    elif product.visible is not None and naive.visible is not None and not shaky:
        # where the budget holds everything, the product's selection is the identity
        free = product.budget - product.prompt_length + 1 if key in ("quest", "infllm") else 0
        if key == "infllm" and product.policy.score.windows(product.budget)[1] * 2 > product.budget:
            return  # the newest entry is always visible in the product
        later = slice(max(0, free), None)
        assert (product.visible.numpy()[:, :, later] == naive.visible[:, :, later]).all()


@pytest.mark.parametrize("key", ROWS)
@settings(max_examples=MAX_EXAMPLES, deadline=None)
@given(
    shape=shapes,
    budget=st.integers(1, 26),
    question=st.integers(0, 6),
    by_query=st.booleans(),
    ratio=st.sampled_from([None, None, 0.0, 0.3, 0.5, 0.75, 0.97]),
    softcap=st.sampled_from([None, None, 3.0]),
    data=st.data(),
)
def test_equals_the_reference(key, shape, budget, question, by_query, ratio, softcap, data):
    options = {
        name: data.draw(st.sampled_from(values), label=name)
        for name, values in CHOICES.get(key, {}).items()
    }
    if key in SCOPED:
        options["scope"] = data.draw(st.sampled_from(["prompt", "context"]), label="scope")
    # kvzip: the reference rounds a ratio to a budget per head, the product the total of all
    if ratio is not None and key not in (*UNBUDGETED, "kvzip"):
        options["compression_ratio"] = ratio
    context = max(1, shape["prompt"] - question)
    granularity = "query_head" if by_query else "kv_head"
    outcome = both(key, shape, budget, context, granularity, options, softcap)
    if outcome is None:
        return
    if key.endswith("expected_attention") and outcome[1].budget <= SMALL[key]["sink"]:
        return  # the reference shrinks the fit's sinks too, so that its budgets would not nest
    if key.startswith("ada") and tied_heads(outcome[0], key, budget, options, by_query):
        return
    compare(key, outcome[1], outcome[2])


def tied_heads(trace, key, budget, options, by_query):
    """Whether heads tie for an entry: the reference gives it to the lower one, the product to the
    one whose next entry scores higher, so that permuting heads permutes the masks."""
    options = {**SMALL[key], **options, "rotary": trace.rotary, "scaling": 0.4}
    options |= {"softcap": trace.softcap, "context_length": trace.context_length}
    if "compression_ratio" not in options:
        options["budget"] = budget
    repeat = trace.group if by_query else 1
    count = trace.kv_heads * repeat

    def run(order):
        queries = [part.unflatten(0, (count, -1))[order].flatten(0, 1) for part in trace.queries]
        keys, values = (
            [part.repeat_interleave(repeat, 0)[order] for part in parts]
            for parts in (trace.keys, trace.values)
        )
        naive = reference.replay(key, queries, keys, values, trace.prompt_length, **options)
        return naive.evicted_at

    plain = run(list(range(count)))
    for first, second in itertools.combinations(range(count), 2):
        order = list(range(count))
        order[first], order[second] = second, first
        if (plain[:, order] != run(order)).any():
            return True
    return False
