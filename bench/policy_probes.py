"""What is measured of policies: `python -m bench.policy_probes NAME '{"option": …}'`.

Each probe takes turns between the two sides of a ratio within one process, and prints the seconds
of every round.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.probes import prepared

BUDGET = 512
UNBUDGETED = ("lagkv", "localkv", "l2_lag", "duo_attention")
READS_AGAIN = ("kvcompose", "kvcompose_unstructured", "kvzip")
KVPRESS = Path(".cache/kvpress/bin/python")
REPEATS = 4  # of a compression, which takes milliseconds; the fastest counts

Pairs = dict[str, list[tuple[float, float]]]


def built(key: str) -> Any:
    """A row of the catalogue with its defaults, at one budget where it takes one."""
    from kvpolicies import build

    return build(key) if key in UNBUDGETED else build(key, budget=BUDGET)


def recorded(model: Any, ids: Any, steps: int) -> tuple[Any, list[int]]:
    """The full cache's greedy response, and the trace of feeding it token by token.

    The trace carries the whole prompt's attention and a second reading of it.
    """
    import torch
    from transformers import DynamicCache

    from kvpolicies import EvictingCache, Trace, build
    from kvpolicies.attention import observing, row_blocks
    from kvpolicies.model_facts import rotary_of
    from kvpolicies.passes import feed, read_again

    seen: list[list[tuple[Any, Any, Any]]] = [[] for _ in range(model.config.num_hidden_layers)]

    def observer(layer: int, module: Any, query: Any, key: Any, value: Any, **_: Any) -> None:
        new = slice(-query.shape[2], None)
        seen[layer].append((query[0], key[0, :, new].clone(), value[0, :, new].clone()))

    response: list[int] = []
    past, fed = DynamicCache(config=model.config), ids
    with torch.inference_mode():
        with observing(model, observer):
            for _ in range(steps + 1):
                out = model(input_ids=fed, past_key_values=past, use_cache=True, logits_to_keep=1)
                response.append(int(out.logits[0, -1].argmax()))
                fed = ids.new_tensor([response[-1:]])
        queries, keys, values = (
            [torch.cat([part[kind] for part in parts], 1).contiguous() for parts in seen]
            for kind in range(3)
        )
        prompt = ids.shape[1]
        trace = Trace(queries, keys, values, prompt, rotary=rotary_of(model, prompt + 2 * BUDGET))
        trace.prompt_attention = []
        for layer in range(trace.layers):
            received = torch.zeros(trace.query_heads, prompt)
            for _, _, rows in row_blocks([trace.states(layer, 0, prompt)], 0):
                received[:, : rows.shape[2]] += rows.sum(1)
            trace.prompt_attention.append(received)
        held = EvictingCache(build("full"), model, hold=True)
        feed(model, held, ids)
        trace.second_reading = read_again(model, held, ids)
    return trace, response[:-1]


def look_ahead_for(model: Any, ids: Any, policy: Any) -> Any:
    """The pseudo queries that LAQ needs, per layer."""
    import torch

    from kvpolicies import EvictingCache, build
    from kvpolicies.passes import feed, look_ahead

    with torch.inference_mode():
        held = EvictingCache(build("full"), model, hold=True)
        logits = feed(model, held, ids)
        small = build(policy.options["lookahead_policy"], budget=BUDGET)
        steps = policy.options["lookahead_steps"]
        return look_ahead(model, held, logits, small, steps, set())[1]


def replays(
    keys: list[str], rounds: int, tokens: int = 4096, new_tokens: int = 128
) -> dict[str, Pairs]:
    """Seconds of each policy's replay and of the live run it replaces, of the same response.

    `first` is the first replay over the trace, which works out the statistics that a policy needs
    of the whole prompt or its second reading; `later` are those that find them there.
    """
    from kvpolicies import generate, replay

    first: Pairs = {key: [] for key in keys}
    later: Pairs = {key: [] for key in keys}
    with prepared("demo", tokens, new_tokens) as (loaded, spec, _):
        model = loaded.model
        ids = loaded.tokenizer(spec.prompt, return_tensors="pt")["input_ids"]
        trace, response = recorded(model, ids, new_tokens)
        worked_out: dict[int, dict[str, Any]] = {}
        for turn in range(rounds + 1):
            for key in keys:
                policy = built(key)
                if "lookahead" in policy.needs:
                    trace.lookahead = look_ahead_for(model, ids, policy)
                if turn == 0:
                    trace.statistics.clear()
                start = time.perf_counter()
                replay(policy, trace, detail=False)
                between = time.perf_counter()
                generate(model, ids, policy, forced=response)
                end = time.perf_counter()
                (later if turn else first)[key].append((between - start, end - between))
                if turn == 0:
                    for layer, held in trace.statistics.items():
                        worked_out.setdefault(layer, {}).update(held)
            trace.statistics.update(worked_out)
    return {"first": first, "later": later}


class Rival:
    """kvpress in its own environment (bench/kvpress_side.py), answering one request at a time."""

    def __init__(self, model: Path, tensors: Path, ratio: float) -> None:
        side = Path(__file__).with_name("kvpress_side.py")
        command = [str(part) for part in (KVPRESS, side, model, tensors, ratio, REPEATS)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._answer("ready")

    def _answer(self, word: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(word):
                return line
        raise RuntimeError("kvpress ended before it answered")

    def seconds(self, key: str) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{key} {'run' if key in READS_AGAIN else 'compress'}\n")
        self.process.stdin.flush()
        return float(self._answer("seconds").split()[1])

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def compressions(
    keys: list[str], rounds: int, tokens: int = 4096, ratio: float = 0.875
) -> dict[str, Pairs]:
    """Seconds that scoring and compressing a prompt takes here and in kvpress, same tensors.

    Policies that read the context again run the model on both sides: prefill, second reading,
    scoring and compression are timed together.
    """
    import torch
    from safetensors.torch import save_file

    from kvpolicies import EvictingCache, build, catalogue, generate
    from kvpolicies.passes import feed

    timed: Pairs = {key: [] for key in keys}
    with prepared("demo", tokens, 1) as (loaded, spec, home), torch.inference_mode():
        model = loaded.model
        ids = loaded.tokenizer(spec.prompt, return_tensors="pt")["input_ids"]
        held, states = EvictingCache(build("full"), model, hold=True), {"ids": ids}

        def look(module: Any, args: Any, kwargs: Any) -> None:
            states[f"hidden.{module.layer_idx}"] = kwargs["hidden_states"].clone()
            states["cos"], states["sin"] = (part.clone() for part in kwargs["position_embeddings"])

        layers = [layer.self_attn for layer in model.model.layers]
        hooks = [layer.register_forward_pre_hook(look, with_kwargs=True) for layer in layers]
        feed(model, held, ids)
        for hook in hooks:
            hook.remove()
        for layer in held.own_layers:
            entries = layer.entries
            assert entries is not None
            keys_, values = entries.keys.contiguous(), entries.values.contiguous()
            layer.entries = type(entries)(keys_, values, entries.positions)
            states |= {f"keys.{layer.index}": keys_[None], f"values.{layer.index}": values[None]}
        save_file(states, home / "states.safetensors")
        rival, methods = Rival(home / "model", home / "states.safetensors", ratio), catalogue()

        def ours(key: str) -> float:
            preset = "kvpress" if "kvpress" in methods[key].presets else None
            options: dict[str, Any] = {"compression_ratio": ratio}
            if key == "lagkv":
                options = {"keep_ratio": 1 - ratio}
            policy = build(key, preset=preset, **options)
            seconds = []
            for _ in range(1 if key in READS_AGAIN else REPEATS):
                cache = held.fork()
                cache.policy, cache.response_length = policy, 0
                start = time.perf_counter()
                if key in READS_AGAIN:
                    generate(model, ids, policy, max_new_tokens=1)
                else:
                    cache.compress()
                seconds.append(time.perf_counter() - start)
            return min(seconds)

        for turn in range(rounds + 1):
            for key in keys:
                time.sleep(0.1)  # the other side's threads spin for a while
                mine = ours(key)
                time.sleep(0.1)
                pair = mine, rival.seconds(key)
                if turn:
                    timed[key].append(pair)
        rival.close()
    return {"pairs": timed}


def decoding(rounds: int, tokens: int = 8192, new_tokens: int = 64) -> dict[str, Any]:
    """Milliseconds per decoded token and cache bytes, under SnapKV at 1/8 and the full cache."""
    import statistics

    from kvpolicies import build, generate

    milliseconds: list[tuple[float, float]] = []
    sizes: list[int] = []
    with prepared("wide", tokens, new_tokens) as (loaded, spec, _):
        ids = loaded.tokenizer(spec.prompt, return_tensors="pt")["input_ids"]
        policies = build("snapkv", budget=ids.shape[1] // 8), build("full")
        for turn in range(rounds + 1):
            runs = [
                generate(loaded.model, ids, policy, max_new_tokens=new_tokens, eos_token_id=-1)
                for policy in policies
            ]
            if turn:
                small, full = (statistics.median(run.step_ms) for run in runs)
                milliseconds.append((small, full))
            sizes = [run.cache_bytes[-1] for run in runs]
    return {"milliseconds": milliseconds, "bytes": sizes}


PROBES: dict[str, Callable[..., dict[str, Any]]] = {
    probe.__name__: probe for probe in (replays, compressions, decoding)
}

if __name__ == "__main__":
    print(json.dumps(PROBES[sys.argv[1]](**json.loads(sys.argv[2]))))
