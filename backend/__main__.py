"""KVScope on the command line: `python -m backend capture prompt.txt`, `… study study.toml`."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from backend.home import DEFAULT, home_folder, usable_home
from backend.prompts import EXTENSIONS, FieldMapping, Prompt, parse, row_prompt
from backend.spec import DEVICES, DTYPES, MAX_LAYERS, CaptureSpec, PromptError
from backend.study.command import add_study
from backend.terminal import Bar, interrupt_flag
from backend.uploads import upload_limit
from cache_store.errors import KVScopeError
from cache_store.files import CAPTURE_FILE, new_run_id

if TYPE_CHECKING:
    from backend.admission import Estimate

DONE, FAILED, CANCELLED = 0, 1, 130  # 2 is argparse's, for wrong usage
PHASES = {
    "load": "loading",
    "prefill": "reading the prompt",
    "decode": "writing the answer",
    "lookahead": "drafting a lookahead",
    "second reading": "reading the context again",
}

SAME_NAMES = (  # options named as the fields of CaptureSpec
    "revision",
    "dtype",
    "device",
    "chat_template",
    "max_new_tokens",
    "min_new_tokens",
    "sample",
    "temperature",
    "top_p",
    "top_k_sampling",
    "seed",
    "stop_at_eos",
    "window",
    "top_k",
    "stored_layers",
    "lookaheads",
    "lookahead_steps",
    "second_reading",
    "title",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit status: 0 done, 1 refused or failed, 130 cancelled."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except KVScopeError as error:
        print(f"kvscope: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("kvscope: cancelled, nothing was kept", file=sys.stderr)
        return CANCELLED
    except Exception as error:
        line = (str(error).strip().splitlines() or [""])[0]
        print(f"kvscope: the run failed: {type(error).__name__}: {line}", file=sys.stderr)
        return FAILED


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """States a default only where it says something."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default in (None, "") or isinstance(action.default, bool):
            return action.help
        return super()._get_help_string(action)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m backend", description="Run models for KVScope."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    capture = commands.add_parser(
        "capture",
        help="run a model on a prompt and keep everything in one DuckDB file",
        description="Run a model on a prompt and keep its states and attention in one DuckDB "
        "file. Prints the file's path. A line ---question--- in the prompt splits context and "
        "question.",
        epilog="Exit status: 0 done, 1 refused or failed, 2 wrong usage, 130 cancelled (Ctrl-C); "
        "unless it is 0 nothing is kept, except a complete capture whose further passes failed or "
        "were cancelled.",
        formatter_class=_Help,
    )
    capture.set_defaults(run=_capture)
    _add_prompt_options(capture)
    _add_model_options(capture)
    _add_generation_options(capture)
    _add_pass_options(capture)
    _add_storage_options(capture)
    add_study(commands, _Help)
    return parser


def _add_prompt_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "prompt",
        help=f"file with the prompt ({', '.join('.' + name for name in EXTENSIONS)}; others are "
        "read as text), - for standard input",
    )
    group = parser.add_argument_group("prompt")
    group.add_argument("--question", help="the question; the file's text is then the context")
    group.add_argument(
        "--row", type=int, default=1, help="which row of a file with several, from 1"
    )
    group.add_argument("--field", help="field that holds the prompt (default: guessed)")
    group.add_argument("--context-field", help="field that holds the context")
    group.add_argument("--question-field", help="field that holds the question")
    group.add_argument(
        "--chat-template", action="store_true", help="send it through the tokenizer's chat template"
    )


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model")
    group.add_argument("--model", default="demo", help="demo, a local folder or a Hugging Face id")
    group.add_argument("--revision", help="branch, tag or commit of a Hugging Face model")
    group.add_argument("--dtype", choices=DTYPES, default="auto", help="number format")
    group.add_argument("--device", default="auto", help=f"{', '.join(DEVICES)} or cuda:1 …")


def _add_generation_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("generation")
    group.add_argument("--max-new-tokens", type=int, default=128, help="at most so many tokens")
    group.add_argument("--min-new-tokens", type=int, default=0, help="at least so many tokens")
    group.add_argument("--sample", action="store_true", help="sample instead of greedy")
    group.add_argument("--temperature", type=float, default=1.0, help="when sampling")
    group.add_argument("--top-p", type=float, default=1.0, help="when sampling; 1 is no limit")
    group.add_argument("--top-k-sampling", type=int, default=0, help="when sampling; 0 is no limit")
    group.add_argument("--seed", type=int, default=0, help="when sampling")
    group.add_argument(
        "--no-stop",
        dest="stop_at_eos",
        action="store_false",
        help="go on after the end of the text",
    )


def _add_pass_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("further passes, for policies that need them in replay")
    group.add_argument(
        "--lookaheads",
        action="append",
        metavar="POLICY",
        default=[],
        help="draft tokens on the small cache of this policy, such as 'snapkv(budget=256)' (LAQ, "
        "LAQ++); may be repeated",
    )
    group.add_argument("--lookahead-steps", type=int, default=8, help="tokens drafted for each")
    group.add_argument(
        "--second-reading",
        action="store_true",
        help="read the context a second time (KVzip, KVCompose)",
    )


def _add_storage_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("file")
    home = os.environ.get("KVSCOPE_HOME") or DEFAULT
    group.add_argument("--out", default=home, help="folder of the runs")
    group.add_argument("--title", default="", help="title of the run (default: its first words)")
    group.add_argument(
        "--window", type=int, default=32, help="last prompt tokens whose attention rows are stored"
    )
    group.add_argument("--top-k", type=int, default=16, help="largest entries kept per row")
    group.add_argument(
        "--stored-layers",
        type=_layers,
        help="layers whose attention rows are stored, such as 0,2-4 (default: all)",
    )


def _layers(text: str) -> list[int]:
    layers: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?", part, re.ASCII)
        if match is None:
            raise argparse.ArgumentTypeError(f"{part[:40]!r} is no layer: write 0,2-4")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise argparse.ArgumentTypeError(f"{part!r} runs backwards: write {last}-{first}")
        if last >= MAX_LAYERS:
            raise argparse.ArgumentTypeError(
                f"no model has a layer {last}: name layers below {MAX_LAYERS}"
            )
        layers.update(range(first, last + 1))
    return sorted(layers)


def _capture(arguments: argparse.Namespace) -> int:
    spec = _spec(arguments)
    home = usable_home(home_folder(arguments.out))
    with interrupt_flag() as interrupted:
        print(f"kvscope: {_admit(spec, home)}", file=sys.stderr)
        from backend.capture import capture
        from backend.progress import Cancelled

        bar, run_id = Bar(PHASES, "writing the file"), new_run_id()
        path, status = home / run_id / CAPTURE_FILE, DONE
        try:
            capture(spec, home, run_id=run_id, progress=bar, cancelled=interrupted.is_set)
        except Cancelled:
            if not path.exists():
                raise KeyboardInterrupt from None
            print("kvscope: cancelled, the capture itself is complete", file=sys.stderr)
            status = CANCELLED
        finally:
            bar.close()
            if path.exists():
                print(path)
    return status


def _spec(arguments: argparse.Namespace) -> CaptureSpec:
    prompt = _prompt(arguments)
    return CaptureSpec(
        context=prompt.context,
        question=prompt.question,
        source=prompt.source,
        model_id=arguments.model,
        **{name: getattr(arguments, name) for name in SAME_NAMES},
    )


def _prompt(arguments: argparse.Namespace) -> Prompt:
    name, data = _read(arguments.prompt)
    mapping = FieldMapping(arguments.field, arguments.context_field, arguments.question_field)
    prompt = row_prompt(
        parse(name, data), arguments.row, mapping if mapping != FieldMapping() else None
    )
    if arguments.question is None:
        return prompt
    if prompt.question:
        raise PromptError("The prompt has a question of its own: leave --question out.")
    context = prompt.text if prompt.text.endswith("\n") else prompt.text + "\n\n"
    return Prompt(context + arguments.question, len(context), prompt.source)


def _read(prompt: str) -> tuple[str, bytes]:
    """The name and the bytes of the prompt's file, never more than may be uploaded."""
    limit = upload_limit()
    if prompt == "-":
        name, data = "standard input.txt", sys.stdin.buffer.read(limit + 1)
    else:
        path = Path(prompt)
        name = path.name if path.suffix[1:].lower() in EXTENSIONS else f"{path.name}.txt"
        try:
            if path.exists() and not path.is_file():
                raise PromptError(
                    f"{prompt} is no regular file: name a file, or - for standard input."
                )
            with path.open("rb") as file:
                data = file.read(limit + 1)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise PromptError(f"{prompt} cannot be read: {reason}.") from error
    if len(data) > limit:
        raise PromptError(
            f"{name} has more than {limit / 1e6:.3g} MB: give a shorter text, or raise "
            "KVSCOPE_MAX_UPLOAD_BYTES."
        )
    return name, data


def _admit(spec: CaptureSpec, home: Path) -> str:
    """What the run will take, in words. Raises KVScopeError when it cannot fit."""
    from transformers.utils import logging

    from backend.admission import earlier_captures, estimate
    from backend.models import load_tokenizer, model_facts
    from backend.text import check_length, encode_prompt
    from cache_store.library import Library

    logging.set_verbosity_error()
    facts = model_facts(spec.model_id, spec.revision)
    prompt = encode_prompt(load_tokenizer(spec.model_id, spec.revision), spec)
    check_length(prompt, facts, spec)
    earlier = earlier_captures(Library(home), spec.model_id)
    expected = estimate(facts, len(prompt.ids), spec, home, observed=earlier)
    expected.check()
    for sentence in expected.advice:
        print(f"kvscope: {sentence}", file=sys.stderr)
    return _in_words(len(prompt.ids), expected)


def _in_words(tokens: int, expected: Estimate) -> str:
    return (
        f"{tokens:,} prompt tokens; about {expected.seconds:.0f} s, "
        f"{expected.memory_bytes / 1e6:,.0f} MB of memory, a file of at most "
        f"{max(0.1, expected.file_bytes / 1e6):,.1f} MB"
    )


if __name__ == "__main__":
    sys.exit(main())
