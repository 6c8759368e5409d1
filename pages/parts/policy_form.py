"""The options of one policy as a form, generated from the catalogue: nothing is listed here."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import streamlit as st

from kvpolicies import PolicyError
from kvpolicies.methods import Method
from kvpolicies.parameters import PARAMETERS, Parameter
from pages.parts import backstage, policy_slots
from pages.parts.policy_slots import Choice
from pages.parts.text import plain

if TYPE_CHECKING:
    from kvpolicies.policy import MethodParameter

DEFAULT = "default"
_CAPTURED = ("states", "queries")  # every capture holds these
_BUDGETS = ("budget", "compression_ratio")


def show(index: int, choice: Choice) -> None:
    """What the policy is, its presets, and one control per parameter."""
    method = policy_slots.method_of(choice)
    if "key" in choice:
        _describe(method)
    failure = policy_slots.failure(index)
    if failure:
        st.warning(plain(failure))
    if method.presets:
        _presets(index, choice, method)
    if method.budget == "optional":
        _budget_or_share(index, choice)
    listed = [part for part in parameters(method) if applies(part, method, choice)]
    with st.grid(2, min_column_width=150, gap="small"):
        for part in listed:
            _control(index, choice, method, part)
    if choice.get("options") or choice.get("preset"):
        plain_choice = {
            name: value for name, value in choice.items() if name not in ("options", "preset")
        }
        st.button(
            "Back to the defaults",
            key=f"defaults-{index}",
            type="tertiary",
            on_click=policy_slots.replace,
            args=(index, plain_choice),
        )


def parameters(method: Method) -> tuple[MethodParameter, ...]:
    """The parameters that change what a method does, as the catalogue states them."""
    backstage.heavy_imports()
    from kvpolicies.policy import parameters_of

    return parameters_of(method)


def applies(part: MethodParameter, method: Method, choice: Choice) -> bool:
    """The budget has its own control; a share per partition counts where no budget does."""
    name = part.parameter.name
    if name in _BUDGETS:
        return False
    return name != "keep_ratio" or method.budget != "optional" or policy_slots.own_budget(choice)


def _describe(method: Method) -> None:
    st.markdown(plain(method.idea))
    facts = [
        method.paper,
        "equal counts per head" if method.structured else "heads keep different numbers",
        *(f"needs {word.replace('_', ' ')}" for word in method.needs if word not in _CAPTURED),
    ]
    st.caption(plain(" · ".join(fact for fact in facts if fact)))
    if method.note:
        st.caption(plain(method.note))


def _presets(index: int, choice: Choice, method: Method) -> None:
    key = f"preset-{index}-{method.key}"
    chosen = choice.get("preset") or DEFAULT
    policy_slots.hold(key, chosen if chosen in method.presets else DEFAULT)

    def changed() -> None:
        picked = st.session_state[key]
        kept = {name: value for name, value in choice.items() if name not in ("preset", "options")}
        policy_slots.replace(index, kept if picked == DEFAULT else {**kept, "preset": picked})

    st.segmented_control(
        "Preset", [DEFAULT, *method.presets], required=True, key=key, on_change=changed
    )
    preset = method.presets.get(chosen)
    for name, other in method.presets.items():
        if preset is None or other is preset:
            st.caption(plain(f"{name}: {other.difference}"))


def _budget_or_share(index: int, choice: Choice) -> None:
    """LagKV and its kin: a share kept of each partition, or the common budget."""
    key = f"follows-{index}"
    words = ["common budget", "share kept per partition"]
    policy_slots.hold(key, words[1] if policy_slots.own_budget(choice) else words[0])

    def changed() -> None:
        options = dict(choice.get("options") or {})
        if st.session_state[key] == words[1]:
            method = policy_slots.method_of(choice)
            options["keep_ratio"] = method.defaults.get("keep_ratio", 0.25)
        else:
            for name in (*_BUDGETS, "keep_ratio"):
                options.pop(name, None)
        policy_slots.replace(index, {**choice, "options": options})

    st.segmented_control("Keeps", words, required=True, key=key, on_change=changed)


def _control(index: int, choice: Choice, method: Method, part: MethodParameter) -> None:
    """One parameter: a number, a choice, a switch or a text, with its words as help."""
    parameter = part.parameter
    default = _default(choice, method, part)
    value = (choice.get("options") or {}).get(parameter.name, default)
    key = f"option-{index}-{method.key}-{method.score}-{parameter.name}"
    kind = _kind(parameter.kind, value)
    policy_slots.hold(key, str(value) if kind == "text" and value is not None else value)
    shared: dict[str, Any] = {
        "key": key,
        "help": plain(_help(part)),
        "on_change": _changed,
        "args": (index, choice, parameter.name, default, key),
    }
    label = plain(_label(parameter))
    if kind == "choice":
        st.selectbox(label, parameter.choices, format_func=_in_words, **shared)
    elif kind == "bool":
        st.toggle(label, **shared)
    elif kind == "text":
        st.text_input(label, placeholder=_placeholder(part), **shared)
    else:
        number: type = int if kind == "int" else float
        low, high = (
            None if edge is None else number(edge) for edge in (parameter.low, parameter.high)
        )
        st.number_input(
            label,
            min_value=low,
            max_value=high,
            value=None,
            step=1 if kind == "int" else 0.05,
            format=None if kind == "int" else "%g",
            placeholder=_placeholder(part),
            **shared,
        )


def _label(parameter: Parameter) -> str:
    """Name and symbol; the symbol only where it says more than the name."""
    name = parameter.name.replace("_", " ")
    own = parameter.symbol in ("", "own") or parameter.symbol.lower() == parameter.name.lower()
    return name if own else f"{name} {parameter.symbol}"


def _kind(kind: str, value: Any) -> str:
    return "text" if kind == "alpha" or not isinstance(value, int | float | str | None) else kind


def _default(choice: Choice, method: Method, part: MethodParameter) -> Any:
    """The value without the reader's own: the preset's, or the method's."""
    preset = method.presets.get(str(choice.get("preset")))
    options = preset.options if preset else {}
    return options.get(part.parameter.name, part.default)


def _placeholder(part: MethodParameter) -> str:
    return part.formula or "follows from the others"


def _help(part: MethodParameter) -> str:
    """Meaning, range, default and the paper's value."""
    parameter = part.parameter
    words = [f"{parameter.symbol}: " if parameter.symbol not in ("", "own") else ""]
    words[0] += parameter.meaning + "."
    if parameter.kind in ("int", "float"):
        words.append(f"Takes {parameter.range}.")
    if part.formula:
        words.append(f"Follows from the budget: {part.formula}.")
    elif part.default is not None:
        words.append(f"Default {_word(part.default)}.")
    if part.paper is not None and part.paper != part.default:
        words.append(f"The paper has {_word(part.paper)}.")
    elif part.paper is not None:
        words.append("The paper's value is the same.")
    return " ".join(words)


def _in_words(option: str) -> str:
    return option.replace("_", " ")


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _changed(index: int, choice: Choice, name: str, default: Any, key: str) -> None:
    """From a callback: take the value into the URL, or say why it cannot be taken."""
    value = st.session_state[key]
    options = {k: v for k, v in (choice.get("options") or {}).items() if k != name}
    try:
        value = _parsed(name, value)
        if value is not None and value != default:
            options[name] = value
        check({**choice, "options": options})
    except PolicyError as error:
        policy_slots.fail(index, f"{error}.".replace("..", "."))
        return
    policy_slots.replace(index, {**choice, "options": options})


def _parsed(name: str, value: Any) -> Any:
    """Numbers that were typed as text, and everything in the parameter's own type and range."""
    if isinstance(value, str):
        value = value.strip() or None
        if value is not None and PARAMETERS[name].kind == "alpha":
            with contextlib.suppress(ValueError):
                value = float(value)
    return PARAMETERS[name].check(value)


def check(choice: Choice) -> None:
    """Raises PolicyError where these options cannot be built; any budget stands for the common."""
    backstage.heavy_imports()
    from kvpolicies.choice import policy_of

    options = dict(choice.get("options") or {})
    if policy_slots.takes_budget(choice) and not policy_slots.own_budget(choice):
        options["budget"] = 64
    policy_of({**choice, "options": options})
