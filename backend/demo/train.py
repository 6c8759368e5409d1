"""Trains the embedded model from scratch.

The schedule is a function of tokens seen divided by `--tokens`, and batch i is a function of the
seed and i: a run that was stopped and resumed gives the losses of one that was not.
"""

import argparse
import math
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from backend.demo import tasks
from backend.demo.documents import POLISH, STAGES, Mix, batch, stage
from backend.demo.evaluate import teacher_forced

EVALUATION = [
    ("passkey", {"digits": 7}),
    ("passkey", {"digits": 64}),
    ("needle", {"keys": 8}),
    ("trace", {"hops": 3}),
    ("arithmetic", {"steps": 12}),
]


def new_model(
    vocabulary: int, *, width: int = 128, layers: int = 6, heads: int = 8, seed: int = 0
) -> LlamaForCausalLM:
    """Llama with two query heads per KV head; heads are 32 wide (wider than `width / heads`)."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        head_dim=32,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config)


def learning_rate(progress: float, peak: float) -> float:
    """Short warm-up, constant to half of training, then cosine down to 3 %."""
    if progress < 0.01:
        return peak * max(progress, 1e-4) / 0.01
    if progress < 0.5:
        return peak
    return peak * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * (progress - 0.5) / 0.5)))


class Training:
    """Model, optimisers and position in the stream of batches."""

    def __init__(
        self,
        model: LlamaForCausalLM,
        tokenizer: Tokenizer,
        *,
        tokens: int,
        batch_tokens: int = 8192,
        peak: float = 4e-3,
        seed: int = 0,
        device: str = "cpu",
        bfloat16: bool = True,
        stages: list[tuple[float, Mix]] = STAGES,
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        nn.Module.to(model, device).train()
        self.tokens, self.batch_tokens, self.peak, self.seed = tokens, batch_tokens, peak, seed
        self.device, self.bfloat16, self.stages = device, bfloat16, stages
        self.step, self.seen = 0, 0
        # Muon for the matrices between embeddings; with AdamW alone induction appears far later.
        named = list(model.named_parameters())
        matrices = [p for n, p in named if p.ndim == 2 and "embed" not in n]
        others = [p for n, p in named if p.ndim != 2 or "embed" in n]
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(matrices, lr=peak, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, lr=peak, betas=(0.9, 0.98), weight_decay=0.0),
        ]

    @property
    def progress(self) -> float:
        return min(1.0, self.seen / self.tokens)

    def advance(self) -> float:
        """One optimiser step; returns the mean loss on answer tokens."""
        mix = stage(self.progress, self.stages)
        ids_np, weights_np = batch(
            self.tokenizer, self.batch_tokens, mix, f"{self.seed}-{self.step}"
        )
        ids = torch.from_numpy(ids_np).to(self.device)  # [documents, length]
        weights = torch.from_numpy(weights_np).to(self.device)[:, 1:].flatten()
        counted = weights.nonzero().squeeze(1)
        with torch.autocast(self.device, torch.bfloat16, enabled=self.bfloat16):
            hidden = self.model.model(ids[:, :-1], use_cache=False).last_hidden_state
            # Only positions that count go through the output matrix: [counted, vocabulary].
            logits = self.model.lm_head(hidden.flatten(0, 1)[counted])
        losses = F.cross_entropy(logits.float(), ids[:, 1:].flatten()[counted], reduction="none")
        weights = weights[counted]
        ((losses * weights).sum() / weights.sum()).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        rate = learning_rate(self.progress, self.peak)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.seen += ids.numel()
        return losses[weights == 1].mean().item()

    def save(self, path: Path) -> None:
        state = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "step": self.step,
            "seen": self.seen,
        }
        partial = path.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(path)

    def load(self, path: Path) -> None:
        state = torch.load(path, map_location=self.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step, self.seen = state["step"], state["seen"]


def report(training: Training) -> str:
    """Right answer tokens (%) and wholly right answers on a few held-out prompts per task."""
    cells = []
    longest = max(length for length, _ in stage(training.progress, training.stages))
    long = 1900 if longest > 1024 else 700
    training.model.eval()
    for name, options in EVALUATION:
        for tokens in (None, long):
            rng = random.Random(1)
            held_out = [tasks.sample(name, rng=rng, tokens=tokens, **options) for _ in range(8)]
            right = [teacher_forced(training.model, training.tokenizer, s) for s in held_out]
            share = 100 * sum(r.mean() for r in right) / len(right)
            exact = sum(bool(r.all()) for r in right)
            cells.append(
                f"{name[:4]}{next(iter(options.values()))}"
                f"@{tokens or 'short'} {share:.0f}% {exact}/8"
            )
    training.model.train()
    return "  ".join(cells)


def export(model: LlamaForCausalLM, folder: Path) -> None:
    """Writes weights (float32), configuration and tokenizer as transformers reads them."""
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = 0
    model.generation_config.do_sample = False
    model.save_pretrained(folder)
    if folder.resolve() != tasks.TOKENIZER_FILE.parent:
        PreTrainedTokenizerFast.from_pretrained(tasks.TOKENIZER_FILE.parent).save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=20_000_000, help="length of the schedule")
    parser.add_argument("--start", type=Path, help="weights to go on from, instead of from scratch")
    parser.add_argument("--peak", type=float, default=4e-3, help="learning rate")
    parser.add_argument("--folder", type=Path, default=Path(".train/demo"), help="checkpoints")
    parser.add_argument("--export", type=Path, help="where the finished model goes")
    parser.add_argument("--checkpoint-every", type=float, default=150, help="seconds")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    tokenizer = Tokenizer.from_file(str(tasks.TOKENIZER_FILE))
    model = (
        LlamaForCausalLM.from_pretrained(arguments.start, dtype=torch.float32)
        if arguments.start
        else new_model(tokenizer.get_vocab_size(), seed=arguments.seed)
    )
    training = Training(
        model,
        tokenizer,
        tokens=arguments.tokens,
        peak=arguments.peak,
        seed=arguments.seed,
        device=arguments.device,
        stages=POLISH if arguments.start else STAGES,
    )
    arguments.folder.mkdir(parents=True, exist_ok=True)
    checkpoint = arguments.folder / "checkpoint.pt"
    if checkpoint.exists():
        training.load(checkpoint)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, at step {training.step}")

    saved = started = time.monotonic()
    seen_before, losses = training.seen, []
    while training.progress < 1:
        losses.append(training.advance())
        if training.step % 20 == 0:
            rate = (training.seen - seen_before) / (time.monotonic() - started)
            print(
                f"step {training.step}  {training.seen / 1e6:.2f} M tokens  "
                f"answer loss {sum(losses) / len(losses):.3f}  {rate:,.0f} tokens/s",
                flush=True,
            )
            losses = []
        if time.monotonic() - saved > arguments.checkpoint_every or training.progress >= 1:
            training.save(checkpoint)
            export(model, arguments.folder / "model")
            print(f"{training.progress:.3f}  {report(training)}", flush=True)
            saved = time.monotonic()
    if arguments.export:
        export(model, arguments.export)


if __name__ == "__main__":
    main()
