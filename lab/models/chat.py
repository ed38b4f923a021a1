"""The prompt as a model will see it, as text: its chat template filled in without torch or transformers.

The same text that `Policy.prompt_ids` turns into tokens (a test compares the two). The template lies in the model's own
folder; it is run in Jinja's sandbox. Templates are never taken from data. Leaves out tokens.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from lab.models.registry import ModelSource


class NoTemplate(LookupError):
    """The prompt cannot be shown as the model sees it, in a sentence."""


def rendered(source: ModelSource, prompt: str | Sequence[dict[str, Any]], system_prompt: str | None = "") -> str:
    """The prompt with system message and template. `system_prompt` "" is the model's own default, None no system message.

    Raises NoTemplate for a model that is not on this machine, or a template that refuses the messages.
    """
    if source.folder is None:
        raise NoTemplate(f"{source.name} is not on this machine yet: its chat template comes with it.")
    messages = messages_of(source, prompt, system_prompt)
    template = _template(source.folder)
    if template is None:
        return messages[-1]["content"]
    import jinja2

    settings = _settings(source.folder)
    try:
        return _environment().from_string(template).render(messages=messages, add_generation_prompt=True, **settings)
    except (jinja2.TemplateError, TypeError, RecursionError) as error:
        raise NoTemplate(f"The chat template of {source.name} refuses this prompt: {error}") from error


def messages_of(source: ModelSource, prompt: str | Sequence[dict[str, Any]], system_prompt: str | None) -> list[dict[str, Any]]:
    """What the template is given; a system message in the prompt itself goes before any other."""
    if system_prompt == "":
        system_prompt = source.system_prompt
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    if system_prompt and messages[0]["role"] != "system":
        return [{"role": "system", "content": system_prompt}, *messages]
    return messages


def _template(folder: Path) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = _json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(template, list):  # several named ones, as older files have them
        template = next((entry.get("template") for entry in template if entry.get("name") == "default"), None)
    return template


def _settings(folder: Path) -> dict[str, Any]:
    """Special tokens that templates name, as text."""
    config = _json(folder / "tokenizer_config.json")
    found = {}
    for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
        value = config.get(name)
        found[name] = value.get("content") if isinstance(value, dict) else value
    return {name: value for name, value in found.items() if value is not None}


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _environment() -> Any:
    """As transformers sets Jinja up (`render_jinja_template`), so that the same template gives the same text."""
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks what the assistant says; for the text it changes nothing."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.Scope(body, lineno=line)

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    def to_json(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    environment.filters["tojson"] = to_json
    environment.globals.update(raise_exception=refuse, strftime_now=lambda form: datetime.now().strftime(form))
    return environment
