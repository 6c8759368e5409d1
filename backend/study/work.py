"""What is left of a study, counted from its folder, and doing one piece of it.

The pieces of a study are: make its prompts (`prepare`), run one of them (`prompt`), and put the
rows together (`merge`). Each is idempotent and leaves one file, so a study goes on after any kill
by doing what is left.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.jobs.parts import Work
from backend.jobs.states import JobSpec
from backend.progress import CancelCheck, Cancelled, Progress, ProgressCallback
from backend.sources import ModelError, resolve
from backend.study.sets import read_set
from backend.study.spec import StudyError, StudySpec, TaskSpec
from backend.study.tasks import Example, generate
from cache_store.study_files import (
    MERGED,
    create_study,
    example_count,
    finished_parts,
    merge,
    missing_parts,
    read_example,
    read_record,
    read_set_file,
    study_folder,
    write_examples,
    write_part,
)

if TYPE_CHECKING:
    from backend.models import LoadedModel

_model_lock = threading.Lock()  # a worker that somebody else started may have several threads


def missing_set(name: str) -> str:
    """What is said of a set whose file was not given."""
    return f"The set '{name}' is missing: give its file."


def make_study(home: Path | str, spec: StudySpec, sets: Mapping[str, bytes] | None = None) -> str:
    """Keep a study's specification and sets, so that it can be run; returns its id.

    The same study on the same weights is the same folder. Raises StudyError for a set that is
    missing, PromptError for one that cannot be read, ModelError and StoreError.
    """
    sets = dict(sets or {})
    for name in spec.sets:
        if name not in sets:
            raise StudyError(missing_set(name))
    sizes = {name: len(read_set(sets[name], name)) for name in spec.sets}
    revision = resolve(spec.model, spec.revision, weights=False).revision
    study_id = spec.id(revision, sets)
    record = {
        "title": spec.title,
        "spec": spec.to_dict(),
        "model_revision": revision,
        "examples": spec.examples(sizes),
        "cells_per_example": len(spec.cells()),
    }
    create_study(home, study_id, record, {name: sets[name] for name in spec.sets})
    return study_id


def study_job(home: Path | str, study_id: str) -> JobSpec:
    """A study as a job: asking twice is the same job, and running it again goes on with it."""
    record = read_record(study_folder(home, study_id))
    return JobSpec("study", {"study": study_id}, str(record.get("title") or "Study"))


def study_work(params: Mapping[str, Any], home: Path) -> Work:
    """What is left to do, and how many cells are done of how many."""
    folder = study_folder(home, params["study"])
    record = read_record(folder)
    per_example = int(record["cells_per_example"])
    made = example_count(folder)
    total = per_example * (int(record["examples"]) if made is None else made)
    if (folder / MERGED).exists():
        return Work("done", [], total, total)
    if made is None:
        return Work("making the prompts", [{"piece": "prepare"}], 0, total)
    missing = missing_parts(folder)
    if not missing:
        return Work("putting rows together", [{"piece": "merge"}], total, total)
    done = per_example * len(finished_parts(folder))
    prompts = [{"piece": "prompt", "index": index, "units": per_example} for index in missing]
    return Work("running", prompts, done, total)


def run_piece(
    params: dict[str, Any],
    home: Path,
    progress: ProgressCallback,
    cancelled: CancelCheck,
    *,
    loaded: LoadedModel | None = None,
) -> dict[str, Any]:
    """The job function of one piece: {"study": id, "piece": …, "index": …}."""
    folder = study_folder(home, params["study"])
    record = read_record(folder)
    spec = StudySpec.from_dict(record["spec"])
    if params["piece"] == "prepare":
        prepare(folder, spec)
    elif params["piece"] == "merge":
        merge(folder)
    elif (index := int(params["index"])) in missing_parts(folder):
        with _model_lock:
            model = loaded or studied_model(spec, record["model_revision"])
            example = read_example(folder, index)
            write_part(folder, index, _rows(model, spec, example, progress, cancelled))
    return {"study": params["study"]}


def run_study(
    home: Path,
    study_id: str,
    progress: ProgressCallback | None = None,
    cancelled: CancelCheck | None = None,
    *,
    loaded: LoadedModel | None = None,
) -> Path:
    """Run what is left of a study in this process; returns its folder.

    Raises KVScopeError, and Cancelled, with everything finished kept.
    """
    report, stop = progress or (lambda _: None), cancelled or (lambda: False)
    params = {"study": study_id}
    work = study_work(params, home)
    while work.parts:
        done = work.done
        for part in work.parts:
            if stop():
                raise Cancelled
            report(Progress(work.phase, done, work.total))
            inner = _shifted(report, work, done)
            run_piece({**params, **part}, home, inner, stop, loaded=loaded)
            done += part.get("units", 0)
        work = study_work(params, home)
    report(Progress(work.phase, work.done, work.total))
    return study_folder(home, study_id)


def _shifted(report: ProgressCallback, work: Work, before: int) -> ProgressCallback:
    return lambda inner: report(Progress(work.phase, before + inner.done, work.total))


def studied_model(spec: StudySpec, revision: str) -> LoadedModel:
    """The study's model, as it was when the study was made. Raises ModelError."""
    from backend.models import load

    loaded = load(spec.model, revision=spec.revision, dtype=spec.dtype, device=spec.device)
    if loaded.revision != revision:
        raise ModelError(
            f"The model '{spec.model}' changed since this study was made (revision "
            f"{revision[:12]} then, {loaded.revision[:12]} now): make the study again."
        )
    return loaded


def prepare(folder: Path, spec: StudySpec) -> None:
    """Make the study's prompts and keep them. Raises StudyError and PromptError."""
    from backend.models import load_tokenizer

    tokenizer = load_tokenizer(spec.model, spec.revision)

    def count_tokens(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    rows: list[dict[str, Any]] = []
    known: set[str] = set()
    for task in spec.tasks:
        for example in _examples(task, folder, spec.seed, count_tokens):
            name, repeat = example.id, 2
            while name in known:  # two entries may draw from the same task
                name, repeat = f"{example.id}.{repeat}", repeat + 1
            known.add(name)
            rows.append(_example_row(example, task, name))
    if not rows:
        raise StudyError("The study has no prompts: its sets are empty.")
    write_examples(folder, rows)


def _examples(
    task: TaskSpec, folder: Path, seed: int, count_tokens: Callable[[str], int]
) -> list[Example]:
    if task.set:
        return read_set(read_set_file(folder, task.set), task.set)[: task.count]
    assert task.count is not None
    return generate(
        task.task, count=task.count, seed=seed, options=task.options, count_tokens=count_tokens
    )


def _example_row(example: Example, task: TaskSpec, name: str) -> dict[str, Any]:
    return {
        "example_id": name,
        "task": example.task,
        "context": example.context,
        "question": example.question,
        "answers": json.dumps(list(example.answers), ensure_ascii=False),
        "scoring": (task.scoring or example.scoring) if example.answers else "",
        "max_new_tokens": task.max_new_tokens or example.max_new_tokens,
        "facts": json.dumps(dict(example.facts), ensure_ascii=False),
    }


def _rows(
    loaded: LoadedModel,
    spec: StudySpec,
    example: Mapping[str, Any],
    progress: ProgressCallback,
    cancelled: CancelCheck,
) -> list[dict[str, Any]]:
    from backend.study.prompt import run_example

    def check() -> None:
        if cancelled():
            raise Cancelled

    total = len(spec.cells())

    def on_cell(done: int) -> None:
        progress(Progress("running", done, total))

    return run_example(loaded, spec, example, check=check, on_cell=on_cell)
