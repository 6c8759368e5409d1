"""What is measured, each in a process of its own: `python -m bench.probes NAME '{"option": …}'`."""

from __future__ import annotations

import json
import resource
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

MODELS = {"demo": "embedded model", "wide": "6 layers x 512, random"}


@contextmanager
def peak_memory() -> Iterator[dict[str, float]]:
    """Fills in `extra_bytes`: how far the resident memory rose above where it stood."""
    process, numbers, done = psutil.Process(), {"extra_bytes": 0.0}, threading.Event()
    before = process.memory_info().rss

    def watch() -> None:
        while not done.wait(0.005):
            rise = process.memory_info().rss - before
            numbers["extra_bytes"] = max(numbers["extra_bytes"], rise)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield numbers
    finally:
        done.set()
        thread.join()


def wide_model(folder: Path) -> str:
    """A randomly initialised Llama, 6 layers of 512 with 8 heads over 4 KV heads; its folder."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from backend.models import load_tokenizer

    tokenizer = load_tokenizer("demo")
    torch.manual_seed(0)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=512,
            intermediate_size=1408,
            num_hidden_layers=6,
            num_attention_heads=8,
            num_key_value_heads=4,
            max_position_embeddings=32768,
        )
    ).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def roomy_demo(folder: Path) -> str:
    """The embedded model allowed more positions than it was trained for; speed is all we want."""
    from backend.sources import DEMO_FOLDER

    shutil.copytree(DEMO_FOLDER, folder)
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = 32768
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def prompt_of(tokens: int, model_id: str) -> str:
    """Generated filler text of exactly or very nearly `tokens` tokens."""
    import random

    from backend.demo.tasks import filler_sentence
    from backend.models import load_tokenizer

    tokenizer = load_tokenizer(model_id)
    rng = random.Random(0)
    text = ""
    ids: list[int] = []
    while len(ids) < tokens:  # as a whole: sentences encoded one by one give more tokens
        text += " ".join(filler_sentence(rng) for _ in range(tokens // 10 + 1)) + " "
        ids = tokenizer(text)["input_ids"]
    return str(tokenizer.decode(ids[:tokens]))


@contextmanager
def prepared(model: str, tokens: int, new_tokens: int) -> Iterator[tuple[Any, Any, Path]]:
    """A loaded and warmed-up model, the specification of a run, and a temporary home."""
    from backend.capture import capture
    from backend.models import load
    from backend.spec import CaptureSpec

    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        build = roomy_demo if model == "demo" else wide_model
        model_id = build(home / "model")
        loaded = load(model_id)
        spec = CaptureSpec(
            context=prompt_of(tokens, model_id),
            model_id=model_id,
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            stop_at_eos=False,
        )
        warm_up = CaptureSpec(context="Warm up.", model_id=model_id, max_new_tokens=4)
        capture(warm_up, home, loaded=loaded)
        generate_with(loaded, warm_up)
        yield loaded, spec, home


def generate_with(loaded: Any, spec: Any) -> Any:
    """transformers' own greedy `generate` for the same prompt, with SDPA attention."""
    import torch

    ids = loaded.tokenizer(spec.prompt, return_tensors="pt")["input_ids"]
    loaded.model.set_attn_implementation("sdpa")
    with torch.inference_mode():
        return loaded.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=spec.max_new_tokens,
            min_new_tokens=spec.max_new_tokens,
            do_sample=False,
        )


def plain(model: str, tokens: int, new_tokens: int) -> dict[str, float]:
    """`model.generate` with SDPA, nothing captured."""
    with prepared(model, tokens, new_tokens) as (loaded, spec, _), peak_memory() as numbers:
        start = time.perf_counter()
        generate_with(loaded, spec)
        numbers["seconds"] = time.perf_counter() - start
    return numbers


def captured(model: str, tokens: int, new_tokens: int) -> dict[str, float]:
    """The same run captured, with the finished file; sizes of the file and of what it stores."""
    from backend.capture import capture
    from cache_store.reader import Capture

    with prepared(model, tokens, new_tokens) as (loaded, spec, home), peak_memory() as numbers:
        start = time.perf_counter()
        run_id = capture(spec, home, loaded=loaded)
        numbers["seconds"] = time.perf_counter() - start
        path = home / run_id / "capture.duckdb"
        run = Capture.open(path)
        info = run.info
        length = info.prompt_length + info.response_length
        states = (info.query_heads + 2 * info.kv_heads) * info.head_dim * length * info.layers
        first = info.prompt_length - min(info.window, info.prompt_length)
        rows = sum(range(first + 1, length + 1)) * info.query_heads * len(info.stored_layers)
        numbers |= {"file_bytes": path.stat().st_size, "raw_bytes": 2 * (states + rows)}
        run.close()
    numbers["process_bytes"] = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return numbers


def eager(model: str, tokens: int, new_tokens: int) -> dict[str, float]:
    """One forward pass with eager attention that returns every attention matrix."""
    import torch

    with prepared(model, tokens, new_tokens) as (loaded, spec, _):
        ids = loaded.tokenizer(spec.prompt, return_tensors="pt")["input_ids"]
        loaded.model.set_attn_implementation("eager")
        with torch.inference_mode(), peak_memory() as numbers:
            start = time.perf_counter()
            loaded.model(ids, output_attentions=True, use_cache=True, logits_to_keep=1)
            numbers["seconds"] = time.perf_counter() - start
    return numbers


def figure(model: str, tokens: int, new_tokens: int, rounds: int = 9) -> dict[str, float]:
    """The Attention page's matrix of one head after another: milliseconds of work, bytes sent."""
    import statistics

    import torch

    from analysis.attention import head_matrix
    from analysis.plotly_renderer import to_plotly
    from backend.capture import capture
    from cache_store.reader import Capture

    with prepared(model, tokens, new_tokens) as (loaded, spec, home):
        run = Capture.open(home / capture(spec, home, loaded=loaded) / "capture.duckdb")
        torch.set_num_threads(1)  # as the app does
        times, sent = [], 0
        for turn in range(rounds):
            layer, head = turn % run.info.layers, turn % run.info.query_heads
            start = time.perf_counter()
            drawn = to_plotly(head_matrix(run, layer, head)).to_json()
            times.append(time.perf_counter() - start)
            sent = max(sent, len(drawn))
        run.close()
    return {"seconds": statistics.median(times), "sent_bytes": sent}


def derived_figure(model: str, tokens: int, new_tokens: int, rounds: int = 5) -> dict[str, float]:
    """The mean over all heads and layers, once its derived job is done."""
    import statistics

    from analysis.attention import NeedsJob, head_matrix
    from analysis.plotly_renderer import to_plotly
    from backend.capture import capture
    from backend.derive import derive
    from cache_store.reader import Capture

    with prepared(model, tokens, new_tokens) as (loaded, spec, home):
        run_id = capture(spec, home, loaded=loaded)
        run = Capture.open(home / run_id / "capture.duckdb")
        job_seconds = 0.0
        try:
            head_matrix(run, "mean", "mean")
        except NeedsJob as needed:
            start = time.perf_counter()
            derive(home, run_id, needed.kind, needed.spec)
            job_seconds = time.perf_counter() - start
        times = []
        for _ in range(rounds):
            start = time.perf_counter()
            to_plotly(head_matrix(run, "mean", "mean")).to_json()
            times.append(time.perf_counter() - start)
        run.close()
    return {"seconds": statistics.median(times), "job_seconds": job_seconds}


def imports() -> dict[str, float]:
    """How many of the heavy packages `import app` pulls in (it should be none)."""
    import importlib

    importlib.import_module("app")
    return {"heavy": sum(name in sys.modules for name in ("torch", "umap", "transformers"))}


def exported(mark: str, form: str, rounds: int = 5) -> dict[str, float]:
    """A raster of 4,096 x 256 or a heatmap of 1,024 x 1,024 cells as a file, the drawing loaded.

    pause_seconds: how long another thread of the process, which looks every 5 ms, was kept waiting.
    """
    import statistics

    import numpy as np

    from analysis.colours import REASONS
    from analysis.export import export
    from analysis.figure import Axis, ColourScale, Figure
    from analysis.paper.venues import style_for

    numbers = np.random.default_rng(0)
    parts: dict[str, Any] = {"x": Axis("position"), "y": Axis("step", reversed=True)}
    if mark == "raster":
        codes = numbers.integers(0, 6, (256, 4096)).astype(np.uint8)
        parts |= {"arrays": {"codes": codes}, "categories": tuple(REASONS.values())[:5]}
    else:
        cells = numbers.random((1024, 1024), np.float32)
        parts |= {"arrays": {"z": cells}, "colour": ColourScale("weight", (0.0, 1.0))}
    drawn = Figure(mark, f"A {mark}", **parts)
    start = time.perf_counter()
    export(drawn, form, style_for("icml"))
    first = time.perf_counter() - start
    times, done, gaps = [], threading.Event(), [0.0]

    def look() -> None:
        seen = time.perf_counter()
        while not done.wait(0.005):
            now = time.perf_counter()
            gaps.append(now - seen)
            seen = now

    watcher = threading.Thread(target=look)
    watcher.start()
    for _ in range(rounds):
        start = time.perf_counter()
        export(drawn, form, style_for("neurips"))
        times.append(time.perf_counter() - start)
    done.set()
    watcher.join()
    return {
        "seconds": statistics.median(times),
        "first_seconds": first,
        "pause_seconds": max(gaps),
    }


PROBES: dict[str, Callable[..., dict[str, float]]] = {
    probe.__name__: probe
    for probe in (plain, captured, eager, figure, derived_figure, imports, exported)
}

if __name__ == "__main__":
    print(json.dumps(PROBES[sys.argv[1]](**json.loads(sys.argv[2]))))
