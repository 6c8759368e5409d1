"""Tiny random models of several families, and the recording of a run as a trace."""

from __future__ import annotations

from functools import cache

import torch
from transformers import (
    DynamicCache,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from kvpolicies import Policy, Trace, build
from kvpolicies.attention import observing
from kvpolicies.cache import EvictingCache
from kvpolicies.model_facts import output_norms, rotary_of, sliding_windows
from kvpolicies.passes import feed, look_ahead, read_again

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
}
FAMILIES = ("llama", "qwen3", "mistral", "gemma2", "gpt2")


@cache
def tiny(family: str, seed: int = 0) -> PreTrainedModel:
    torch.manual_seed(seed)
    model: PreTrainedModel
    if family == "llama":
        model = LlamaForCausalLM(LlamaConfig(**SIZES))
    elif family == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**SIZES))
    elif family == "mistral":
        model = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=64))
    elif family == "gemma2":
        model = Gemma2ForCausalLM(
            Gemma2Config(**SIZES, sliding_window=16, attn_logit_softcapping=5.0)
        )
    else:
        model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=97,
                n_embd=32,
                n_layer=3,
                n_head=4,
                n_positions=512,
                initializer_range=0.3,
                bos_token_id=None,
                eos_token_id=None,
            )
        )
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model.eval()


def prompt_ids(length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 97, (1, length), generator=torch.Generator().manual_seed(seed))


def plain_tokens(model: PreTrainedModel, ids: torch.Tensor, count: int) -> list[int]:
    """The model's own greedy response with transformers' cache and SDPA attention."""
    model.set_attn_implementation("eager" if model.config.model_type == "gemma2" else "sdpa")
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False
    )
    return output[0, ids.shape[1] :].tolist()


def record(
    model: PreTrainedModel,
    ids: torch.Tensor,
    response: list[int],
    *,
    context: int | None = None,
    policy: Policy | None = None,
) -> Trace:
    """A trace of the prompt and a forced response under the full cache, prefill then step by step.

    `policy` names what further passes to record for it.
    """
    config = model.config.get_text_config(decoder=True)
    layers = len(sliding_windows(config))
    seen: list[list[tuple]] = [[] for _ in range(layers)]
    facts: dict = {}

    def observer(layer, module, query, key, value, *, scaling, softcap, sliding_window, plain):
        count = query.shape[2]
        seen[layer].append((query[0], key[0, :, -count:], value[0, :, -count:]))
        facts.update(scaling=scaling, softcap=softcap)

    past = DynamicCache(config=config)
    with torch.inference_mode(), observing(model, observer):
        model(input_ids=ids, past_key_values=past, use_cache=True)
        for token in response:
            model(input_ids=ids.new_tensor([[token]]), past_key_values=past, use_cache=True)
    queries, keys, values = (
        [torch.cat([part[kind] for part in parts], 1).clone() for parts in seen]
        for kind in range(3)
    )
    trace = Trace(
        queries,
        keys,
        values,
        prompt_length=ids.shape[1],
        context_length=context,
        scaling=facts["scaling"],
        softcap=facts["softcap"],
        sliding_window=sliding_windows(config),
        rotary=rotary_of(model, ids.shape[1] + len(response) + 600),
    )
    if policy is not None:
        add_passes(trace, model, ids, policy)
    return trace


def add_passes(trace: Trace, model: PreTrainedModel, ids: torch.Tensor, policy: Policy) -> None:
    needs = set(policy.needs)
    context = trace.context_length
    with torch.inference_mode():
        if "lookahead" in needs:
            held = EvictingCache(build("full"), model, hold=True)
            logits = feed(model, held, ids[:, :context] if policy.scope == "context" else ids)
            small = build(policy.options["lookahead_policy"], budget=policy.budget)
            steps = policy.options["lookahead_steps"]
            trace.lookahead = look_ahead(model, held, logits, small, steps, set())[1]
        if "second_reading" in needs:
            held = EvictingCache(build("full"), model, hold=True)
            feed(model, held, ids[:, :context])
            trace.second_reading = read_again(model, held, ids[:, :context])
        if "output_norms" in needs:
            trace.output_norms = [
                output_norms(model, layer, values) for layer, values in enumerate(trace.values)
            ]
