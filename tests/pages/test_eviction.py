"""The Eviction page without a browser: its address, its policies, their forms and their jobs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from backend.derive import derive
from backend.jobs import JobSpec
from cache_store.reader import Capture, CaptureInfo
from kvpolicies import PolicyError, build, catalogue, parameters_of
from kvpolicies.allocations import ALLOCATIONS
from kvpolicies.choice import canonical
from kvpolicies.methods import METHODS
from kvpolicies.parameters import PARAMETERS
from kvpolicies.schedules import SCHEDULES
from kvpolicies.scores import SCORES
from pages.parts import (
    backstage,
    eviction_sweep,
    eviction_tables,
    policy_builder,
    policy_form,
    policy_replays,
    policy_slots,
    sitemap,
)
from pages.parts.policy_slots import Budget
from pages.parts.text import size
from tests.pages.conftest import FIRST, ROOT, RUN, Open
from tests.pages.plots import plots
from tests.synthetic import Synthetic

DEFAULT = ["streaming_llm", "h2o", "snapkv", "lazyeviction"]
# FIRST: 2 layers x 2 KV heads x 8 channels, keys and values, in two bytes each
ENTRY_BYTES = 2 * 2 * 2 * 8 * 2


def policies(app: AppTest) -> list[str]:
    keys = (f"policy-{index}" for index in range(4))
    return [box.value for key in keys for box in app.selectbox if box.key == key]


def submitted() -> dict[str, JobSpec]:
    """The replays asked for, by the key of their policy."""
    jobs = backstage.jobs()
    specs = [jobs.spec(job.id) for job in jobs.jobs()]
    return {spec.params["spec"]["policy"]["key"]: spec for spec in specs}


def warnings(app: AppTest) -> str:
    return "\n".join(str(element.value).replace("\\", "") for element in app.warning)


@pytest.fixture
def open_page(monkeypatch: pytest.MonkeyPatch) -> Open:
    """Opens the Eviction page at an address, as a cold link does."""
    monkeypatch.setattr(sitemap, "FIRST_PAGE", "pages/eviction.py")

    def open_page(**query: str | list[str]) -> AppTest:
        app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=60)
        for key, value in query.items():
            app.query_params[key] = value
        return app.run()

    return open_page


@pytest.fixture(scope="module")
def info(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CaptureInfo]:
    with Capture.open(FIRST.write(tmp_path_factory.mktemp("runs"))) as capture:
        yield capture.info


def test_an_empty_library_says_what_to_do_next(home: Path, open_page: Open) -> None:
    app = open_page()
    assert not app.exception
    assert app.title[0].value == "Which tokens would each policy evict?"


def test_four_policies_at_a_quarter_of_the_prompt(two_runs: Path, open_page: Open) -> None:
    app = open_page(run=RUN)
    assert not app.exception and not app.error
    assert policies(app) == DEFAULT
    assert app.number_input(key="budget").value == FIRST.prompt_length // 4
    asked = submitted()
    assert sorted(asked) == sorted(DEFAULT)
    for spec in asked.values():
        assert spec.params["kind"] == "replay"
        assert spec.params["spec"]["policy"]["options"]["budget"] == FIRST.prompt_length // 4


def test_opening_the_page_again_asks_for_nothing_twice(two_runs: Path, open_page: Open) -> None:
    app = open_page(run=RUN)
    before = {job.id: job.submitted_at for job in backstage.jobs().jobs()}
    app.run()
    open_page(run=RUN)
    assert {job.id: job.submitted_at for job in backstage.jobs().jobs()} == before


def test_a_link_opens_its_policies_budget_and_place(two_runs: Path, open_page: Open) -> None:
    app = open_page(
        run=RUN,
        p1="snapkv(window=8)",
        p2="window_attention*pyramid*after_prefill(kernel=3)",
        budget="0.5",
        unit="ratio",
        layer="1",
        kv_head="0",
        step="3",
        panel="Why and what it cost",
    )
    assert not app.exception and not app.error and not app.warning
    assert len(policies(app)) == 2
    assert app.number_input(key="budget").value == 0.5
    assert app.selectbox(key="layer").value == "1"
    assert app.selectbox(key="kv_head").value == "0"
    assert app.slider(key="step").value == 3
    options = [spec.params["spec"]["policy"]["options"] for spec in _specs()]
    assert {"compression_ratio": 0.5, "window": 8} in options
    assert {"compression_ratio": 0.5, "kernel": 3} in options


def _specs() -> list[JobSpec]:
    jobs = backstage.jobs()
    return [jobs.spec(job.id) for job in jobs.jobs()]


WRONG = {
    "p1": ("snapkw(", "The address names no usable policy as p1: 'snapkw(' is no policy"),
    "p2": ("nothing()", "as p2: there is no policy 'nothing'"),
    "p3": ("snapkv(kernel=0)", "as p3: kernel () must be a whole number of at least 1, not 0"),
    "budget": ("0", "There is no budget '0' here: it goes from 1 to 52 entries. Shown is 10."),
    "unit": ("GB", "There is no unit 'GB' here: The unit is one of entries, ratio, kB."),
    "kv_head": ("2", "There is no kv_head '2' here: KV head is one of 0, 1."),
    "step": ("13", "There is no step '13' here: Step goes from 0 to 12. Shown is 12."),
    "panel": ("Nothing", "There is no panel 'Nothing' here"),
}


def test_an_address_that_names_nothing_falls_back_with_a_sentence(
    two_runs: Path, open_page: Open
) -> None:
    app = open_page(run=RUN, **{key: value for key, (value, _) in WRONG.items()})
    assert not app.exception and not app.error
    said = warnings(app)
    for _, sentence in WRONG.values():
        assert sentence in said
    assert policies(app) == DEFAULT


def test_what_only_a_panel_finds_missing_is_said_above_it(two_runs: Path, open_page: Open) -> None:
    choice = {"key": "snapkv", "options": {"budget": 10}}
    derive(two_runs, RUN, "replay", {"policy": canonical(choice)})
    app = open_page(run=RUN, p1="snapkv()", budget="10", panel="Text", page="7")
    assert not app.exception and not app.error
    assert "There is no page '7' here: the text has 1 page." in warnings(app)


def test_other_pages_means_and_prompt_tokens_lead_to_a_head(
    two_runs: Path, open_page: Open
) -> None:
    app = open_page(run=RUN, layer="mean", head="3", step="-5")
    assert not app.exception and not app.error and not app.warning
    assert app.selectbox(key="layer").value == str(FIRST.first_look()[0])
    assert app.selectbox(key="kv_head").value == "1"  # query head 3 of 4 belongs to KV head 1 of 2
    assert app.slider(key="step").value == 0


def test_one_budget_in_three_units(info: CaptureInfo) -> None:
    assert policy_slots.entry_bytes(info) == ENTRY_BYTES
    budget = Budget("entries", 10)
    assert budget.options(info) == {"budget": 10}
    assert budget.as_unit("ratio", info) == Budget("ratio", 0.75)  # 10 of 40 prompt entries stay
    assert budget.as_unit("kB", info) == Budget("kB", 10 * ENTRY_BYTES / 1000)
    assert Budget("kB", 1.0).options(info) == {"budget": 1000 // ENTRY_BYTES}
    assert Budget("ratio", 0.75).options(info) == {"compression_ratio": 0.75}


def test_another_unit_keeps_the_budget(two_runs: Path, open_page: Open) -> None:
    app = open_page(run=RUN, budget="20")
    app.selectbox(key="unit").select("ratio").run()
    assert app.number_input(key="budget").value == 0.5
    assert app.query_params["budget"] == "0.5"
    app.selectbox(key="unit").select("entries").run()
    assert app.number_input(key="budget").value == 20


def test_a_budget_field_that_reports_nothing_keeps_the_budget(
    two_runs: Path, open_page: Open
) -> None:
    app = open_page(run=RUN, budget="0.5", unit="ratio")
    app.number_input(key="budget").set_value(None).run()
    assert not app.exception
    assert app.query_params["budget"] == "0.5"
    assert app.number_input(key="budget").value == 0.5
    app.number_input(key="budget").set_value(0.25).run()
    assert (app.query_params["budget"], app.query_params["unit"]) == ("0.25", "ratio")


def test_policies_are_added_changed_and_removed(two_runs: Path, open_page: Open) -> None:
    app = open_page(run=RUN, p1="snapkv()", p2="tova()")
    app.button(key="add-policy").click().run()
    assert policies(app) == ["snapkv", "tova", "streaming_llm"]
    app.selectbox(key="policy-1").select("knorm").run()
    assert app.query_params["p2"] == "knorm()"
    app.button(key="remove-0").click().run()
    assert policies(app) == ["knorm", "streaming_llm"]
    assert "p3" not in app.query_params
    app.button(key="remove-1").click().run()
    assert policies(app) == ["knorm"]
    assert not [button for button in app.button if button.key == "remove-0"]


def opened(app: AppTest, index: int = 0) -> AppTest:
    """The page with one policy's options open."""
    app.session_state[f"options-{index}"] = True
    return app.run()


def test_every_method_has_a_control_per_parameter() -> None:
    for key, method in catalogue().items():
        listed = {part.parameter.name for part in parameters_of(method)}
        choice = {"key": key, "options": {"keep_ratio": 0.5}}
        shown = {
            part.parameter.name
            for part in policy_form.parameters(method)
            if policy_form.applies(part, method, choice)
        }
        assert shown == listed - {"budget", "compression_ratio"}


def test_the_form_shows_defaults_and_takes_values(two_runs: Path, open_page: Open) -> None:
    app = opened(open_page(run=RUN, p1="snapkv()"))
    window = app.number_input(key="option-0-snapkv-window_attention-window")
    assert window.value == 32
    assert "Default 32" in window.help.replace("\\", "")
    window.set_value(16).run()
    assert app.query_params["p1"] == "snapkv(window=16)"
    app.number_input(key="option-0-snapkv-window_attention-window").set_value(32).run()
    assert app.query_params["p1"] == "snapkv()"


def test_a_form_says_its_values_again_when_the_page_runs_twice_at_once(
    two_runs: Path, open_page: Open
) -> None:
    app = opened(open_page(run=RUN, p1="snapkv()"))
    key = "option-0-snapkv-window_attention-window"
    for _ in range(3):  # a browser that missed the first run sees one of the next
        sent = app.number_input(key=key).proto
        assert sent.set_value and sent.value == 32
        app.run()
    app.run()
    assert not app.number_input(key=key).proto.set_value  # typing is not wiped out for ever
    assert app.number_input(key=key).value == 32


def test_every_form_opens_at_the_methods_own_values(two_runs: Path, open_page: Open) -> None:
    app = opened(open_page(run=RUN, p1="snapkv()"))
    for method in METHODS:
        app.selectbox(key="policy-0").select(method.key).run()
        assert not app.exception
        fields = {
            str(field.key).rpartition("-")[2]: field.value
            for kind in (app.number_input, app.text_input, app.selectbox, app.toggle)
            for field in kind
            if str(field.key).startswith(f"option-0-{method.key}-")
        }
        for name, value in method.defaults.items():
            if name in fields:
                shown = str(value) if PARAMETERS[name].kind == "alpha" else value
                assert fields[name] == shown, (method.key, name)
        # a budget takes the place of one, the other is what makes RaaS
        stated = set(method.defaults) - {"keep_ratio", "pin_prompt"}
        assert stated <= set(fields), method.key


def test_a_preset_changes_what_it_says(two_runs: Path, open_page: Open) -> None:
    app = opened(open_page(run=RUN, p1="snapkv()"))
    difference = catalogue()["snapkv"].presets["kvpress"].difference
    assert difference in "\n".join(str(e.value).replace("\\", "") for e in app.caption)
    app.segmented_control(key="preset-0-snapkv").set_value("kvpress").run()
    assert app.query_params["p1"] == "snapkv(preset=kvpress)"
    assert app.number_input(key="option-0-snapkv-window_attention-window").value == 64
    assert app.selectbox(key="option-0-snapkv-window_attention-pool").value == "mean"


def test_an_impossible_value_keeps_what_was_typed(two_runs: Path, open_page: Open) -> None:
    app = opened(open_page(run=RUN, p1="lazyeviction()"))
    key = "option-0-lazyeviction-recurrence-alpha"
    app.text_input(key=key).set_value("three").run()
    assert not app.exception
    assert "alpha (α) must be a number or a multiple of uniform attention" in warnings(app)
    assert app.text_input(key=key).value == "three"
    assert app.query_params.get("p1") == "lazyeviction()"
    app.text_input(key=key).set_value("3/n").run()
    assert app.query_params["p1"] == 'lazyeviction(alpha="3/n")' or (
        app.query_params["p1"] == "lazyeviction(alpha=3/n)"
    )
    assert not app.warning


def test_a_partition_share_takes_the_place_of_the_budget(two_runs: Path, open_page: Open) -> None:
    app = opened(open_page(run=RUN, p1="lagkv()"))
    app.segmented_control(key="follows-0").set_value("share kept per partition").run()
    assert app.query_params["p1"] == "lagkv(keep_ratio=0.25)"
    assert "budget" not in submitted_options("lagkv", keep=True)
    app.segmented_control(key="follows-0").set_value("common budget").run()
    assert app.query_params["p1"] == "lagkv()"


def submitted_options(key: str, keep: bool) -> dict[str, object]:
    found = [spec.params["spec"]["policy"] for spec in _specs()]
    options = [policy["options"] for policy in found if policy.get("key") == key]
    return options[0] if keep else options[-1]


def test_the_builder_offers_exactly_what_can_be_built() -> None:
    for score, allocate in itertools.product(SCORES, ALLOCATIONS):
        legal = set()
        for schedule in SCHEDULES:
            budget = None if allocate == "per_head" else 8
            try:
                build(score=score, allocate=allocate, schedule=schedule, budget=budget)
                legal.add(schedule)
            except PolicyError:
                pass
        allocations, without = policy_builder.possible_allocations(score)
        assert (allocate in allocations) == bool(legal) == (allocate not in without)
        possible, refused = policy_builder.possible_schedules(score, allocate)
        assert set(possible) == legal and set(refused) == set(SCHEDULES) - legal
        assert all(refused.values())


def test_a_policy_is_built_from_the_one_it_replaces(two_runs: Path, open_page: Open) -> None:
    app = open_page(run=RUN, p1="pyramidkv()")
    app.selectbox(key="policy-0").select("*build").run()
    assert app.query_params["p1"] == "window_attention*pyramid*after_prefill()"
    assert app.selectbox(key="build-0-allocate").value == "pyramid"
    app.selectbox(key="build-0-score").select("page_bound").run()  # reads pages, evicts nothing
    assert app.query_params["p1"] == "page_bound*uniform*select()"
    assert app.selectbox(key="build-0-schedule").options == ["select"]


def test_a_readers_own_method_is_offered(
    two_runs: Path, open_page: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "loud_values.py").write_text(
        '"""Keeps entries whose values are large."""\n\ntitle = "Loud values"\n\n\n'
        "def score(view, power: float = 1.0):\n"
        "    return view.entries.values.float().norm(dim=-1) ** power\n"
    )
    monkeypatch.setenv("KVSCOPE_POLICIES", str(folder))
    app = open_page(run=RUN, p1="loud_values()")
    assert not app.exception and not app.warning
    assert policies(app) == ["loud_values"]
    assert "Loud values" in app.selectbox(key="policy-0").options
    app = opened(app)
    assert app.number_input(key="option-0-loud_values-loud_values-power").value == 1.0


def test_a_failed_replay_says_why(two_runs: Path, open_page: Open) -> None:
    app = open_page(run=RUN, p1="snapkv()")
    (job,) = backstage.jobs().jobs()
    backstage.jobs()._board.finish(job.id, "failed", "The disk is full.")
    app.run()
    assert "The disk is full" in "\n".join(str(element.value) for element in app.caption)
    assert app.button(key="ask-0").label == "Try again"
    app.button(key="ask-0").click().run()
    assert backstage.jobs().get(job.id).status == "queued"


def test_what_no_replay_could_give_is_said_without_a_button(
    two_runs: Path, open_page: Open
) -> None:
    app = open_page(run=RUN, p1="lagkv(budget=3,lag=4,sink=4)")
    assert "the attainable range is" in "\n".join(str(element.value) for element in app.caption)
    assert not [button for button in app.button if button.key == "ask-0"]
    assert not backstage.jobs().jobs()
    app = open_page(run=RUN, p1="oracle()", panel="Run it for real")
    assert "it exists in replay only" in "\n".join(str(element.value) for element in app.caption)
    assert not [button for button in app.button if button.key == "ask-live-0"]


def test_every_panel_shows_what_is_replayed(two_runs: Path, open_page: Open) -> None:
    chosen = [
        {"key": "snapkv", "options": {"budget": 10, "window": 4}},
        {"key": "streaming_llm", "options": {"budget": 10}},
    ]
    references = [
        {"key": key, "schedule": schedule, "options": {"budget": 10}}
        for key in ("oracle", "random")
        for schedule in ("after_prefill", "every_step")
    ]
    for choice in (*chosen, *references):
        derive(two_runs, RUN, "replay", {"policy": canonical(choice)})
    app = open_page(
        run=RUN, p1="snapkv(window=4)", p2="streaming_llm()", budget="10", step="6", span="3-8"
    )
    captions = "\n".join(str(element.value).replace("\\", "") for element in app.caption)
    # 10 of 40 prompt entries stay; the 12 new ones are kept by SnapKV alone
    for kept in (22 * ENTRY_BYTES, 10 * ENTRY_BYTES):
        assert f"10 asked · 10 kept · {size(kept)} of {size(52 * ENTRY_BYTES)}" in captions
    charts = {"Masks": 6, "Text": 0, "Evidence": 3, "Why and what it cost": 7}
    for panel, count in charts.items():
        app.segmented_control(key="panel").set_value(panel).run()
        assert not app.exception and not app.error and not app.warning
        assert len(plots(app)) == count
        assert "How to read it" in [element.value for element in app.subheader]
    assert not backstage.jobs().jobs()
    app.segmented_control(key="panel").set_value("Run it for real").run()
    assert not app.exception
    app.button(key="ask-live-0").click().run()
    (job,) = backstage.jobs().jobs()
    assert backstage.jobs().spec(job.id).params["kind"] == "policy_run"


def test_all_policies_are_run_for_real_with_one_button(two_runs: Path, open_page: Open) -> None:
    app = open_page(
        run=RUN, p1="snapkv(window=4)", p2="streaming_llm()", p3="oracle()", panel="Run it for real"
    )
    assert app.button(key="ask-live-all").label.startswith("Run all 2 (about ")
    app.button(key="ask-live-all").click().run()
    asked = [backstage.jobs().spec(job.id).params for job in backstage.jobs().jobs()]
    live = [one["spec"]["policy"]["key"] for one in asked if one["kind"] == "policy_run"]
    assert sorted(live) == ["snapkv", "streaming_llm"]
    assert not [button for button in app.button if button.key == "ask-live-all"]


def test_a_run_without_a_response_has_only_the_end_of_the_prompt(
    home: Path, open_page: Open
) -> None:
    Synthetic(run_id=RUN, response_length=0).write(home)
    app = open_page(run=RUN)
    assert not app.exception and not app.error
    assert not [slider for slider in app.slider if slider.key == "step"]


def test_words_in_a_table_are_no_numbers_and_the_policy_stays_in_sight() -> None:
    table = pd.DataFrame([{"policy": "SnapKV", "recall": 0.5, "simulated": True}])
    columns = {name: eviction_tables.column(name, "", table[name]) for name in table}
    kinds = {name: column["type_config"]["type"] for name, column in columns.items()}
    assert kinds["policy"] == "text" and columns["policy"]["pinned"]
    assert kinds["recall"] == "number" and kinds["simulated"] == "checkbox"


def test_counts_in_a_table_are_whole_and_shares_have_three_digits() -> None:
    table = pd.DataFrame({"budget": [1024.0, np.nan], "missed": [839.4, 1022.0], "mass": [0.5, 1]})
    forms = {
        name: eviction_tables.column(name, "entries", table[name])["type_config"]["format"]
        for name in table
    }
    assert forms == {"budget": "%,.0f", "missed": "%,.0f", "mass": "%.3g"}


@pytest.mark.parametrize(
    ("title", "short"),
    [
        ("SnapKV, budget 1,024, window 64", "SnapKV, window 64"),
        ("H2O, 75% evicted", "H2O"),
        ("TOVA, 0.5% evicted, sink 4", "TOVA, sink 4"),
        ("LagKV, keep ratio 0.25", "LagKV, keep ratio 0.25"),
    ],
)
def test_a_short_name_leaves_the_budget_out(title: str, short: str) -> None:
    assert policy_replays.short_name(title) == short


def test_budgets_of_the_sweep_stay_below_the_prompt() -> None:
    assert eviction_sweep.budgets(1024) == [32, 64, 128, 256, 512, 768]
    assert eviction_sweep.budgets(8) == [4, 6]
    assert eviction_sweep.budgets(2) == []
