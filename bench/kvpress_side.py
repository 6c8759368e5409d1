"""The other side of `python -m bench policy_compression studies`: kvpress, in its own environment.

    python -m venv .cache/kvpress
    .cache/kvpress/bin/pip install torch==2.13.0
    .cache/kvpress/bin/pip install kvpress==0.5.5        # brings its own, older transformers

`bench.policy_probes` runs this file with that environment's Python and speaks to it in lines: it
sends a key of KVScope's catalogue and reads the seconds that kvpress took, so that the two take
turns on the same machine. The tensors come from a safetensors file.

With the model's folder alone it answers whole studies through kvpress's own pipeline: a line of
JSON {"context", "question", "answer_prefix", "policies", "ratios", "max_new_tokens"} gives the
seconds it took and the answers, policy by policy and ratio by ratio.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
from kvpress import (  # type: ignore[import-not-found]  # not in this environment
    AdaKVPress,
    ExpectedAttentionPress,
    KnormPress,
    KVComposePress,
    KVPressTextGenerationPipeline,
    KVzipPress,
    LagKVPress,
    PyramidKVPress,
    RandomPress,
    SnapKVPress,
    StreamingLLMPress,
    TOVAPress,
)
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache


def presses(ratio: float) -> dict[str, Any]:
    """kvpress's counterpart of each policy, with kvpress's own defaults."""
    return {
        "streaming_llm": StreamingLLMPress(ratio),
        "tova": TOVAPress(ratio),
        "snapkv": SnapKVPress(ratio),
        "pyramidkv": PyramidKVPress(ratio),
        "ada_snapkv": AdaKVPress(SnapKVPress(ratio)),
        "expected_attention": ExpectedAttentionPress(ratio),
        "ada_expected_attention": AdaKVPress(ExpectedAttentionPress(ratio)),
        "knorm": KnormPress(ratio),
        "lagkv": LagKVPress(ratio),
        "random": RandomPress(ratio, seed=0),
        "kvcompose": KVComposePress(compression_ratio=ratio),
        "kvcompose_unstructured": KVComposePress(compression_ratio=ratio, structured=False),
        "kvzip": KVzipPress(ratio),
    }


class Kvpress:
    def __init__(self, model_folder: str, tensors: str, ratio: float, repeats: int) -> None:
        self.model: Any = AutoModelForCausalLM.from_pretrained(model_folder).eval()
        self.states, self.presses, self.repeats = load_file(tensors), presses(ratio), repeats
        for layer in self.model.model.layers:
            layer.self_attn.rotary_emb = self.model.model.rotary_emb

    def compress(self, key: str) -> float:
        """Seconds to score and compress the file's tensors, all layers; the fastest repeat."""
        press, held, seconds = self.presses[key], self.states, []
        kwargs = {"position_embeddings": (held["cos"], held["sin"])}
        for _ in range(self.repeats):
            kept = []
            start = time.perf_counter()
            for number, layer in enumerate(self.model.model.layers):
                states = (held[f"{name}.{number}"] for name in ("hidden", "keys", "values"))
                kept.append(press.compress(layer.self_attn, *states, None, kwargs))
            seconds.append(time.perf_counter() - start)
        return min(seconds)

    def run(self, key: str) -> float:
        """Seconds to prefill, read the context again, score and compress."""
        start = time.perf_counter()
        with self.presses[key](self.model):
            self.model.model(input_ids=self.states["ids"], past_key_values=DynamicCache())
        return time.perf_counter() - start


def answer_studies(model_folder: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    if tokenizer.bos_token is None:
        tokenizer.bos_token = ""  # the pipeline puts one in front
    model = AutoModelForCausalLM.from_pretrained(model_folder).eval()
    answering = KVPressTextGenerationPipeline(model=model, tokenizer=tokenizer)
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        how = {name: asked[name] for name in ("question", "answer_prefix", "max_new_tokens")}
        start, answers = time.perf_counter(), []
        for ratio in asked["ratios"]:
            held = presses(ratio)
            for policy in asked["policies"]:
                found = answering(asked["context"], press=held[policy], **how)
                answers.append((policy, ratio, found["answer"]))
        seconds = time.perf_counter() - start
        print("answers " + json.dumps({"seconds": seconds, "answers": answers}), flush=True)


def main() -> None:
    if len(sys.argv) == 2:
        answer_studies(sys.argv[1])
        return
    model_folder, tensors, ratio, repeats = sys.argv[1:]
    kvpress = Kvpress(model_folder, tensors, float(ratio), int(repeats))
    print("ready", flush=True)
    for line in sys.stdin:
        key, what = line.split()
        with torch.inference_mode():
            seconds = kvpress.run(key) if what == "run" else kvpress.compress(key)
        print(f"seconds {seconds}", flush=True)


if __name__ == "__main__":
    main()
