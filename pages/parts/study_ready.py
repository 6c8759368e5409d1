"""Studies to start from: the papers' grids at the embedded model's size."""

from __future__ import annotations

from typing import Any

FIRST: dict[str, Any] = {
    "title": "Needles under five policies",
    "model": "demo",
    "ratios": [0.5, 0.75, 0.9],
    "tasks": [{"task": "multi_key", "count": 6, "options": {"length": [600]}}],
    "policies": [
        {"policy": key} for key in ("streaming_llm", "h2o", "snapkv", "laq_pp", "kvcompose")
    ],
}


def _partitions(lag: int, ratio: float) -> dict[str, Any]:
    """LagKV at one partition length and share kept, named by the entries kept of a partition."""
    name = f"LagKV, L {lag}, rL {lag * ratio:g}"
    return {"policy": "lagkv", "options": {"lag": lag, "keep_ratio": ratio}, "name": name}


READY: dict[str, dict[str, Any]] = {
    "Score over ratio (KVCompose, Tables 2 and 3)": {
        "title": "Score over ratio",
        "ratios": [0.1, 0.25, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9],
        "tasks": [
            {"task": "passkey", "count": 6, "options": {"length": [800]}},
            {"task": "multi_key", "count": 6, "options": {"length": [800]}},
            {"task": "variable_tracing", "count": 6, "options": {"length": [800]}},
        ],
        "policies": [
            {"policy": key}
            for key in ("kvcompose", "tova", "snapkv", "pyramidkv", "streaming_llm", "random")
        ],
    },
    "Needles by depth and length (LAQ, Figure 4)": {
        "title": "Needles by depth and length",
        "budgets": [32, 64],
        "tasks": [
            {
                "task": "multi_key",
                "count": 2,
                "options": {"length": [400, 800, 1600], "depth": [0, 0.25, 0.5, 0.75, 1]},
            }
        ],
        "policies": [{"policy": key} for key in ("h2o", "snapkv", "laq", "laq_pp")],
    },
    "64 digits over what is kept per partition (LagKV, Figure 2)": {
        "title": "64 digits over rL",
        "ratios": [0.5],
        "tasks": [{"task": "passkey", "count": 6, "options": {"length": [1000], "digits": 64}}],
        "policies": [_partitions(lag, ratio) for lag in (64, 128) for ratio in (0.25, 0.5, 0.75)],
    },
    "Needles for LagKV (LagKV, Figures 3 and 4)": {
        "title": "Needles by depth and length, LagKV",
        "ratios": [0.5],
        "tasks": [
            {
                "task": "passkey",
                "count": 2,
                "options": {"length": [400, 800, 1600], "depth": [0, 0.25, 0.5, 0.75, 1]},
            }
        ],
        "policies": [_partitions(64, ratio) for ratio in (0.125, 0.25, 0.5)],
    },
    "Score over budget and bytes (SAGE-KV, Figure 2)": {
        "title": "Score over budget and bytes",
        "budgets": [32, 64, 128, 256],
        "tasks": [{"task": "multi_key", "count": 8, "options": {"length": [800]}}],
        "policies": [{"policy": key} for key in ("sage_kv", "streaming_llm", "snapkv", "tova")],
    },
    "Window, threshold and scores (LazyEviction, Tables 4, 9 and 10)": {
        "title": "LazyEviction: window, threshold and scores",
        "ratios": [0.5],
        "tasks": [
            {"task": "arithmetic", "count": 8, "options": {"length": [250], "steps": 4, "items": 3}}
        ],
        "policies": [
            {"policy": "lazyeviction"},
            *({"policy": "lazyeviction", "options": {"window": w}} for w in (5, 10, 50)),
            *({"policy": "lazyeviction", "options": {"alpha": a}} for a in (1e-4, 1e-3, 1e-2)),
            *({"policy": "lazyeviction", "options": {h: "off"}} for h in ("h1", "h2")),
        ],
    },
    "Bytes and time over the response (LazyEviction, Figure 6, Tables 7 and 8)": {
        "title": "Bytes and time over the response",
        "budgets": [96],
        "measures": ["score", "latency"],
        "tasks": [
            {
                "task": "arithmetic",
                "count": 3,
                "options": {"length": [200], "steps": steps, "items": 3},
            }
            for steps in (1, 2, 4, 6)
        ],
        "policies": [{"policy": key} for key in ("lazyeviction", "tova", "h2o", "snapkv")],
    },
    "Quality and length of the Q-cache (LAQ, Figure 5)": {
        "title": "Quality and length of the Q-cache",
        "budgets": [32],
        "tasks": [{"task": "multi_key", "count": 8, "options": {"length": [800]}}],
        "policies": [
            {"policy": "laq"},
            *({"policy": "laq", "options": {"lookahead_steps": n}} for n in (1, 2, 4, 16)),
            *(
                {"policy": "laq", "options": {"lookahead_budget": size, "lookahead_policy": kind}}
                for kind in ("snapkv", "streaming_llm")
                for size in (16, 64, 128)
            ),
        ],
    },
    "Time by stage (LAQ, Figure 6)": {
        "title": "Time by stage",
        "budgets": [64],
        "measures": ["score", "latency"],
        "tasks": [{"task": "multi_key", "count": 4, "options": {"length": [1600]}}],
        "policies": [{"policy": key} for key in ("snapkv", "laq", "tova", "kvcompose")],
    },
}
