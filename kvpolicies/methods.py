"""Every published method as a row: what it scores, how it splits the budget, when it evicts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LAGKV = "LagKV"
LAQ = "LAQ"
SAGE = "SAGE-KV"
LAZY = "LazyEviction"
KVCOMPOSE = "KVCompose"


@dataclass(frozen=True)
class Preset:
    """Another reading of a method: what it changes, and what differs in one sentence."""

    options: Mapping[str, Any]
    difference: str
    allocate: str | None = None  # None: as the method has it
    schedule: str | None = None

    @property
    def parts(self) -> dict[str, str]:
        """The allocation and the schedule, where they differ from the method's."""
        given = {"allocate": self.allocate, "schedule": self.schedule}
        return {name: part for name, part in given.items() if part is not None}


@dataclass(frozen=True)
class Method:
    """One row. `budget` is "required", "optional" or "none"; `tables` are the papers of this
    project whose tables the method appears in; `paper_values` what its paper uses where that is
    not the default here; `formulas` how a default follows from the budget."""

    key: str
    title: str
    idea: str
    paper: str
    score: str
    allocate: str
    schedule: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    tables: tuple[str, ...] = ()
    budget: str = "required"
    formulas: Mapping[str, str] = field(default_factory=dict)
    paper_values: Mapping[str, Any] = field(default_factory=dict)
    presets: Mapping[str, Preset] = field(default_factory=dict)
    note: str = ""

    @property
    def structured(self) -> bool:
        """Whether the heads of a layer keep equally many entries."""
        from kvpolicies.allocations import ALLOCATIONS

        return ALLOCATIONS[self.allocate].structured and self.schedule != "after_prefill_sliding"

    @property
    def needs(self) -> tuple[str, ...]:
        """What it must be given: states, queries, question, lookahead, second_reading, future."""
        from kvpolicies.scores import SCORES

        return SCORES[self.score].needs

    def named(self, allocate: str, schedule: str) -> str:
        """Its title, and in brackets the allocation and schedule that are not its own."""
        given = ((allocate, self.allocate), (schedule, self.schedule))
        words = {"every": "every W steps"}
        others = [words.get(part, part.replace("_", " ")) for part, own in given if part != own]
        return f"{self.title} ({', '.join(others)})" if others else self.title


KVPRESS_WINDOW = Preset(
    {"window": 64, "kernel": 5, "pool": "mean"},
    "kvpress looks through 64 queries and pools by the average of 5 instead of the maximum of 7; "
    "the zeros it counts beyond both ends of the prompt are left out.",
)
LAQ_RELEASED = Preset(
    {"mask": "released", "granularity": "query_head"},
    "The authors' code (noforit/Lookahead_Q-Cache) places the observation rows inside the prompt, "
    "which hides up to n keys from them, and repeats the keys for each query head, so that each "
    "keeps its own entries.",
)
ONCE = "kvpress evicts once, at the end of the prompt, and its cache grows afterwards"

METHODS = (
    Method(
        "full",
        "Full cache",
        "Keeps everything: the reference for quality and for cost.",
        "",
        "position",
        "uniform",
        "after_prefill",
        tables=(LAQ, SAGE, LAZY),
        budget="none",
    ),
    Method(
        "streaming_llm",
        "StreamingLLM",
        "Keeps the first few entries, which hold the softmax together, and the newest ones.",
        "Xiao et al. 2024, Efficient Streaming Language Models with Attention Sinks",
        "position",
        "uniform",
        "every_step",
        {"sink": 4, "positions": "absolute"},
        tables=(LAQ, SAGE, KVCOMPOSE),
        paper_values={"positions": "cache"},
        presets={
            "paper": Preset(
                {"positions": "cache"},
                "The paper numbers positions inside the cache; by default they stay absolute.",
            ),
            "kvpress": Preset({}, f"{ONCE}.", schedule="after_prefill"),
        },
    ),
    Method(
        "h2o",
        "H2O",
        "Keeps the entries that gathered most attention so far, and the newest ones.",
        "Zhang et al. 2023, H2O: Heavy-Hitter Oracle",
        "cumulative_attention",
        "uniform",
        "every_step",
        tables=(LAGKV, LAQ, LAZY),
        formulas={"recent": "B // 2"},
        presets={
            "kvpress": Preset(
                {"average": True},
                f"{ONCE} (ObservedAttention); it averages the attention over the queries that "
                "could see an entry and keeps no recent window.",
                schedule="after_prefill",
            )
        },
    ),
    Method(
        "tova",
        "TOVA",
        "Evicts what the newest token attends to least, the same in all heads of a layer.",
        "Oren et al. 2024, Transformers are Multi-State RNNs",
        "last_attention",
        "uniform",
        "every_step",
        tables=(LAZY, KVCOMPOSE),
        presets={
            "kvpress": Preset(
                {"recent": 1},
                f"{ONCE}; the last token of the prompt is always kept.",
                schedule="after_prefill",
            )
        },
    ),
    Method(
        "snapkv",
        "SnapKV",
        "Keeps what the last queries of the prompt attend to, pooled so that neighbours survive.",
        "Li et al. 2024, SnapKV: LLM Knows What You Are Looking For before Generation",
        "window_attention",
        "uniform",
        "after_prefill",
        {"window": 32, "kernel": 7, "pool": "max"},
        tables=(LAQ, KVCOMPOSE),
        presets={
            "released": Preset(
                {"kernel": 5, "pool": "mean", "granularity": "query_head"},
                "The authors' code (FasterDecoding/SnapKV) repeats the keys for each query head, "
                "so that each keeps its own entries, and unless told otherwise it pools by the "
                "average of 5; the zeros it counts beyond both ends of the prompt are left out.",
            ),
            "kvpress": KVPRESS_WINDOW,
        },
    ),
    Method(
        "pyramidkv",
        "PyramidKV",
        "SnapKV's score with budgets that shrink from lower to higher layers.",
        "Cai et al. 2024, PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information "
        "Funneling",
        "window_attention",
        "pyramid",
        "after_prefill",
        {"window": 8, "kernel": 7, "pool": "max", "beta": 20},
        tables=(LAQ, KVCOMPOSE),
        presets={
            "released": Preset(
                {"granularity": "query_head"},
                "The authors' code (Zefan-Cai/KVCache-Factory, run_longbench.py) repeats the keys "
                "for each query head, so that each keeps its own entries.",
            ),
            "kvpress": Preset(
                KVPRESS_WINDOW.options,
                "kvpress looks through 64 queries and pools by the average of 5 instead of the "
                "maximum of 7; its own pyramid, which is not rounded to whole steps and adds the "
                "window to the budget, is not followed.",
            ),
        },
    ),
    Method(
        "ada_snapkv",
        "Ada-SnapKV",
        "SnapKV's score; heads with high scores take budget from the others of their layer.",
        "Feng et al. 2024, Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation",
        "window_attention",
        "head_adaptive",
        "after_prefill",
        {"window": 32, "kernel": 7, "pool": "max", "alpha_floor": 0.2},
        tables=(KVCOMPOSE,),
        presets={
            "kvpress": Preset(
                {"floor": "pin", **KVPRESS_WINDOW.options},
                "kvpress pins each head's top entries and prunes the rest of the layer globally, "
                "looks through 64 queries and pools by the average of 5.",
            )
        },
    ),
    Method(
        "expected_attention",
        "ExpectedAttention",
        "Scores entries by the attention that Gaussian future queries are expected to give.",
        "Jegou et al. 2024, kvpress: Expected Attention",
        "expected_attention",
        "uniform",
        "after_prefill",
        {"n_future": 512, "sink": 4},
        tables=(KVCOMPOSE,),
        presets={
            "kvpress": Preset(
                {"normalise": "ranked"}, "kvpress leaves the sinks out of the softmax over keys."
            )
        },
    ),
    Method(
        "ada_expected_attention",
        "Ada-ExpectedAttention",
        "Expected attention with budgets that adapt to the heads of a layer.",
        "Jegou et al. 2024; Feng et al. 2024",
        "expected_attention",
        "head_adaptive",
        "after_prefill",
        {"n_future": 512, "sink": 4, "alpha_floor": 0.2},
        tables=(KVCOMPOSE,),
        presets={
            "kvpress": Preset(
                {"floor": "pin", "normalise": "ranked"},
                "kvpress pins each head's top entries, prunes the rest of the layer globally, and "
                "leaves the sinks out of the softmax.",
            )
        },
    ),
    Method(
        "knorm",
        "L2 norm",
        "Keeps the keys with the smallest norm; the first two layers are kept whole.",
        "Devoto et al. 2024, A Simple and Effective L2 Norm-Based Strategy for KV Cache "
        "Compression",
        "key_norm",
        "uniform",
        "after_prefill",
        {"skip_layers": 2},
        presets={
            "kvpress": Preset({"skip_layers": 0}, "kvpress compresses the first two layers too.")
        },
    ),
    Method(
        "lagkv",
        "LagKV",
        "Compresses each partition by how its tokens stand out against the partition after it.",
        "LagKV: Lag-Relative Information of the KV Cache Tells Which Tokens Are Important",
        "lag_relative",
        "uniform",
        "per_partition",
        {"sink": 16, "lag": 128, "keep_ratio": 0.25},
        tables=(LAGKV,),
        budget="optional",
        presets={
            "kvpress": Preset(
                {"sink": 4, "once": True},
                "kvpress protects 4 sinks instead of 16 and compresses once, at the end of the "
                "prompt; its cache grows afterwards.",
            )
        },
    ),
    Method(
        "localkv",
        "LocalKV",
        "LagKV without the lag: each partition is its own reference.",
        "LagKV: Lag-Relative Information of the KV Cache, Figure 5",
        "local_relative",
        "uniform",
        "per_partition",
        {"sink": 16, "lag": 128, "keep_ratio": 0.25},
        tables=(LAGKV,),
        budget="optional",
    ),
    Method(
        "l2_lag",
        "L2 norm by partitions",
        "LagKV's recursion with the key norm as score; the first two layers are kept whole.",
        "LagKV: Lag-Relative Information of the KV Cache, Figure 5",
        "key_norm",
        "uniform",
        "per_partition",
        {"sink": 16, "lag": 128, "keep_ratio": 0.25, "skip_layers": 2},
        tables=(LAGKV,),
        budget="optional",
    ),
    Method(
        "laq",
        "LAQ",
        "Drafts a few tokens on a small cache first and keeps what their queries attend to.",
        "Lookahead Q-Cache: Achieving More Consistent KV Cache Eviction via Pseudo Query",
        "lookahead_attention",
        "uniform",
        "after_prefill",
        {"lookahead_steps": 8, "window": 0, "kernel": 7, "lookahead_policy": "snapkv"},
        tables=(LAQ,),
        formulas={"lookahead_budget": "B"},
        presets={
            "released": LAQ_RELEASED,
        },
    ),
    Method(
        "laq_pp",
        "LAQ++",
        "LAQ joined with the last queries of the prompt, whose entries are kept.",
        "Lookahead Q-Cache: Achieving More Consistent KV Cache Eviction via Pseudo Query",
        "lookahead_attention",
        "uniform",
        "after_prefill",
        {"lookahead_steps": 8, "window": 8, "kernel": 7, "lookahead_policy": "snapkv"},
        tables=(LAQ,),
        formulas={"lookahead_budget": "B"},
        presets={
            "released": LAQ_RELEASED,
        },
    ),
    Method(
        "sage_kv",
        "SAGE-KV",
        "Lets each query head of the last prompt token pick its own entries, once.",
        "LLMs Know What to Drop: Self-Attention Guided KV Cache Eviction for Efficient "
        "Long-Context Inference",
        "last_attention",
        "uniform",
        "after_prefill_sliding",
        {"view": "query_head"},
        tables=(SAGE,),
        formulas={
            "sink": "B / 4",
            "picks per query head": "B / (2G), rounded down to a power of two",
            "recent": "the rest",
        },
    ),
    Method(
        "raas",
        "RaaS",
        "Keeps the prompt, and of the response what was attended to most recently.",
        "Hu et al. 2025, RaaS: Reasoning-Aware Attention Sparsity (rebuilt from the description)",
        "timestamp",
        "uniform",
        "every_step",
        {"alpha": 1e-4, "pin_prompt": True},
        tables=(LAZY,),
        note="There is no public code; this is rebuilt from the description.",
    ),
    Method(
        "r_kv",
        "R-KV",
        "Weighs attention against redundancy: of repeated keys only the newest copy stays.",
        "Cai et al. 2025, R-KV: Redundancy-aware KV Cache Compression for Reasoning Models",
        "redundancy_attention",
        "uniform",
        "every",
        {"interval": 128, "mix": 0.1, "window": 8, "similarity": 0.5},
        tables=(LAZY,),
    ),
    Method(
        "lazyeviction",
        "LazyEviction",
        "Waits for tokens to come back: evicts those silent for longer than their own longest "
        "pause.",
        "Zhang et al., LazyEviction: Lagged KV Eviction with Attention Pattern Observation for "
        "Efficient Long Reasoning",
        "recurrence",
        "uniform",
        "every",
        {"window": 25, "alpha": 5e-4, "form": "released"},
        tables=(LAZY,),
        presets={
            "paper": Preset(
                {"form": "printed"},
                "The printed H2 grows with the recurrence interval, against the paper's own text; "
                "the released one falls.",
            ),
            "released": Preset(
                {"form": "released", "granularity": "query_head"},
                "The released code has the default's form, and repeats the keys for each query "
                "head, so that each keeps its own entries.",
            ),
        },
    ),
    Method(
        "h2o_window",
        "H2O with a window",
        "H2O's score, evicting every W steps only.",
        "Zhang et al., LazyEviction, Table 3",
        "cumulative_attention",
        "uniform",
        "every",
        {"window": 25},
        tables=(LAZY,),
    ),
    Method(
        "tova_window",
        "TOVA with a window",
        "TOVA's score, evicting every W steps only.",
        "Zhang et al., LazyEviction, Table 3",
        "last_attention",
        "uniform",
        "every",
        {"window": 25},
        tables=(LAZY,),
    ),
    Method(
        "raas_window",
        "RaaS with a window",
        "RaaS's score, evicting every W steps only.",
        "Zhang et al., LazyEviction, Table 3",
        "timestamp",
        "uniform",
        "every",
        {"window": 25, "alpha": 1e-4},
        tables=(LAZY,),
    ),
    Method(
        "kvcompose",
        "KVCompose",
        "Ranks composite slots over all layers, so that informative layers keep more.",
        "KVCompose: Efficient Structured KV Cache Compression with Composite Tokens",
        "context_attention",
        "composite",
        "after_prefill",
        {"agg_task": "max", "agg_group": "mean", "agg_head": "mean", "scope": "context"},
        tables=(KVCOMPOSE,),
        paper_values={"min_per_layer": 0},
        presets={
            "paper": Preset(
                {"min_per_layer": 0}, "The paper lets a layer lose everything; here each keeps one."
            ),
            "kvpress": Preset(
                {"match": "kvpress"},
                "The authors' contribution to kvpress raises layer 0's slot scores to the best of "
                "all layers, so that no layer keeps more than layer 0.",
            ),
        },
    ),
    Method(
        "kvcompose_unstructured",
        "KVCompose, unstructured",
        "KVCompose's score with one ranking over layers, heads and tokens.",
        "KVCompose: Efficient Structured KV Cache Compression with Composite Tokens, Table 4",
        "context_attention",
        "global",
        "after_prefill",
        {"agg_task": "max", "agg_group": "mean", "scope": "context"},
        tables=(KVCOMPOSE,),
    ),
    Method(
        "duo_attention",
        "DuoAttention",
        "Streaming heads keep sinks and recent entries, retrieval heads everything.",
        "Xiao et al. 2024, DuoAttention",
        "position",
        "per_head",
        "every_step",
        {"sink": 128, "recent": 256, "streaming": 0.5},
        tables=(KVCOMPOSE,),
        budget="none",
        note="Without a head pattern from a file, the heads with the least attention outside sinks "
        "and recent entries stream: a heuristic, not the paper's optimised pattern.",
    ),
    Method(
        "kvzip",
        "KVzip",
        "Keeps what the model needs to repeat its context.",
        "Kim et al. 2025, KVzip: Query-Agnostic KV Cache Compression with Context Reconstruction",
        "reconstruction",
        "global",
        "after_prefill",
        {"chunk": 2000, "sink": 4, "scope": "context"},
        tables=(KVCOMPOSE,),
        presets={
            "released": Preset(
                {"group_reduce": "max"},
                "The authors' code (snu-mllab/KVzip) takes the largest attention of a group, here "
                "it is the mean; its instruction to repeat the context is not part of the second "
                "reading here.",
            ),
            "kvpress": Preset(
                {"chunk": 2048, "group_reduce": "max"},
                "kvpress repeats 2,048 tokens at once and takes the largest attention of a group; "
                "its instruction to repeat them is not part of the second reading here.",
            ),
        },
    ),
    Method(
        "quest",
        "Quest",
        "Evicts nothing; each step reads the pages whose keys could match its query best.",
        "Tang et al. 2024, Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference",
        "page_bound",
        "uniform",
        "select",
        {"page": 16, "skip_layers": 2},
        tables=(SAGE,),
        formulas={"pages": "max(3, B // 16)"},
    ),
    Method(
        "infllm",
        "InfLLM",
        "Evicts nothing; each step looks distant blocks up through a few representative keys.",
        "Xiao et al. 2024, InfLLM: Training-Free Long-Context Extrapolation",
        "block_representative",
        "uniform",
        "select",
        {"sink": 128, "recent": 4096, "page": 128, "representatives": 4},
        tables=(SAGE,),
        formulas={"blocks": "⌊(B − init − local) / 128⌋"},
    ),
    Method(
        "random",
        "Random",
        "The floor: evicts at random.",
        "",
        "random",
        "uniform",
        "after_prefill",
        {"seed": 0},
    ),
    Method(
        "oracle",
        "Oracle",
        "A strong reference: keeps what the rest of the response will attend to.",
        "",
        "future_attention",
        "uniform",
        "after_prefill",
        note="Provably best only for attention mass with a single eviction after prefill.",
    ),
    Method(
        "belady",
        "Belady",
        "Keeps what will be attended to again soonest.",
        "",
        "next_use",
        "uniform",
        "after_prefill",
        {"alpha": 5e-4},
    ),
)

_BY_KEY = {method.key: method for method in METHODS}


def catalogue() -> dict[str, Method]:
    """All methods by key, in the order in which they are listed; a reader's own come last.

    Raises `PolicyError` naming the file when one of these cannot be used.
    """
    folder = os.environ.get("KVSCOPE_POLICIES")
    if not folder or os.environ.get("KVSCOPE_HOSTED"):
        return dict(_BY_KEY)
    from kvpolicies.own import own_methods

    return {**_BY_KEY, **own_methods(folder)}
