"""Form fields made from `RunConfig`: label, help and range come from the field itself, TRL's default stands beside it.

Leaves out where a field goes on the page (the tabs decide) and what a value means (the config decides, with a sentence).
"""

from __future__ import annotations

import dataclasses
import json
import typing
from typing import Any

import gradio as gr

from lab.config import REWARD_FIELDS, ConfigError, RunConfig, as_text, named
from lab.errors import did_you_mean

FIELDS = {field.name: field for field in dataclasses.fields(RunConfig)}
SHARED = ("system_prompt", "model", "task", "num_generations", "temperature", "max_completion_length", "seed", "rewards",
          "reward_weights")  # settings that the Lab form and the Train form both have
_AS_THEY_ARE = ("num_generations",)  # a slider's number
_HINTS = typing.get_type_hints(RunConfig)
_DEFAULTS = RunConfig()


def make_field(name: str, value: Any = None, *, prefix: str, choices: list | None = None, custom: bool = False,
               **extra: Any) -> gr.components.Component:
    """The input for one setting. `prefix` keeps ids of the same setting on two tabs apart; `choices` makes it a list to
    pick from, to which `custom` allows further values to be typed."""
    meta = FIELDS[name].metadata
    value = form_value(name, getattr(_DEFAULTS, name) if value is None else value)
    shared = dict(label=meta["label"], info=help_text(name), elem_id=f"{prefix}-{name}", elem_classes=["setting"], min_width=80) | extra
    choices = choices or (list(meta["choices"]) if meta["choices"] else None)
    if name in REWARD_FIELDS:
        return gr.Dropdown(choices, value=value, multiselect=True, allow_custom_value=True, **shared)
    if choices:
        return gr.Dropdown(choices, value=value, allow_custom_value=custom, filterable=custom, **shared)
    if isinstance(getattr(_DEFAULTS, name), bool) or name == "load_in_4bit":
        return _switch(name, value, shared)
    if name == "num_generations":
        return gr.Slider(meta["low"], meta["high"], value=value, step=1, buttons=[], **shared)
    return gr.Textbox(value, max_lines=1, **shared)


def form_value(name: str, value: Any) -> Any:
    """A setting as its input shows it: numbers as text, so that 2e-3 can be typed."""
    if name in REWARD_FIELDS:
        return list(value)
    if name == "load_in_4bit":
        return "" if value is None else str(value).lower()
    return value if isinstance(value, bool) or name in _AS_THEY_ARE else as_text(value)


def help_text(name: str) -> str:
    """The field's help, with TRL's default where TRL has the setting."""
    meta = FIELDS[name].metadata
    return meta["help"] if meta["trl"] is None else f"{meta['help']} TRL {as_text(meta['trl'])}."


def read_form(values: dict[str, Any]) -> dict[str, Any]:
    """What was typed, as `RunConfig` wants it. ConfigError names the field that cannot be read.

    Settings that are not in the form are left out, so the config's own defaults hold for them.
    """
    unknown = sorted(set(values) - set(FIELDS))
    if unknown:
        meant = "".join(did_you_mean(name, FIELDS) for name in unknown)
        raise ConfigError(f"Unknown setting {', '.join(unknown)}.{meant} Known settings: {', '.join(FIELDS)}.")
    return {name: _read(name, value) for name, value in values.items()}


def _read(name: str, value: Any) -> Any:
    kinds = typing.get_args(_HINTS[name]) or (_HINTS[name],)
    if name in REWARD_FIELDS:
        return tuple(value) if isinstance(value, (list, tuple)) else (value,)
    if name == "reward_weights":
        parts = value.replace(";", ",").split(",") if isinstance(value, str) else (value or [])
        return tuple(_number(name, part, float) for part in parts if str(part).strip()) or None
    if name == "task" or not isinstance(value, str):
        return value
    if (type(None) in kinds or name == "cold_start") and value.strip().lower() in ("", "none") and name != "system_prompt":
        return None
    if name == "system_prompt":
        return None if value.strip().lower() == "none" else value
    if bool in kinds:
        return value.strip().lower() in ("true", "on", "yes", "1")
    number = int if int in kinds else float if float in kinds else None
    return value.strip() if number is None else _number(name, value, number)


def _number(name: str, text: Any, kind: type) -> int | float:
    try:
        number = float(str(text).strip().replace("\u2212", "-"))
        if kind is float:
            return number
        if number == int(number):
            return int(number)
    except (ValueError, OverflowError):
        pass
    raise ConfigError(f"{named(name)} is {str(text).strip()!r}: "
                      f"{'a whole number' if kind is int else 'a number'} is needed.")


def wire_form(side: str, inputs: dict[str, gr.components.Component]) -> None:
    """Hands a form to assets/js/forms.js: its values after each change and when asked, and values of the page's into its fields."""
    names, fields = list(inputs), list(inputs.values())
    shared = [name for name in names if name in SHARED]
    tell = gr.Button("Tell", elem_id=f"{side}-tell", elem_classes=["wire"])
    told = f"(...values) => window.lab.formTold({json.dumps(side)}, {json.dumps(names)}, values)"
    gr.on([tell.click, *(field.change for field in fields)], None, fields, None, js=told, api_visibility="private")
    for way, given in (("take", shared), ("restore", names)):
        button = gr.Button(way, elem_id=f"{side}-{way}", elem_classes=["wire"])
        button.click(None, None, [inputs[name] for name in given], api_visibility="private",
                     js=f"() => window.lab.formGiven({json.dumps(side)}, {json.dumps(given)})")


def trl_css(prefix: str) -> str:
    """Shows each TRL default at the right of its label; screen readers find it in the help."""
    return "\n".join(f'#{prefix}-{name}{{--trl:"TRL {as_text(field.metadata["trl"])}"}}'
                     for name, field in FIELDS.items() if field.metadata["trl"] is not None)


def _switch(name: str, value: Any, shared: dict) -> gr.components.Component:
    if name == "load_in_4bit":
        return gr.Dropdown([("on for CUDA, off on CPU", ""), ("on", "true"), ("off", "false")], value=value, filterable=False, **shared)
    return gr.Checkbox(value, **shared)
