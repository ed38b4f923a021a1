"""Named LoRA adapters on one frozen base: add, choose, copy, read, write, remove.

Adapters are PEFT's LoRA layers (arXiv 2106.09685) put into the base in place, float32 whatever the base is: in
bfloat16 an A matrix hardly moves at reinforcement-learning rates. Files have PEFT's layout. Leaves out dropout, DoRA
and trained embeddings: an adapter on disk that needs them is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import peft
import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from lab.models.registry import ModelError

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
# Settings of PEFT that make an adapter more than y = W x + scale · B A x on layers of the base as it is.
NOT_PLAIN = ("use_dora", "modules_to_save", "bias", "lora_bias", "trainable_token_indices", "layer_replication", "target_parameters",
             "alora_invocation_tokens", "use_qalora", "use_bdlora", "arrow_config", "kasa_config", "monteclora_config", "velora_config",
             "megatron_config")
CHANGED_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")  # starts of LoRA that take something out of the base's weights


class Adapters:
    """The LoRA adapters of one base model. Exactly one, or none, is active inside `active(name)`."""

    def __init__(self, model: nn.Module, base_name: str):
        self._model = model
        self._base_name = base_name
        self._targets = _linear_layers(model)
        self._configs: dict[str, peft.LoraConfig] = {}
        self._layers: list[BaseTunerLayer] = []
        self._active: str | None = None  # set in PEFT's layers, whether they are switched on or not
        self._now: str | None = None  # inside `active`

    def __contains__(self, name: str) -> bool:
        return name in self._configs

    def names(self) -> list[str]:
        return list(self._configs)

    def require(self, name: str | None) -> None:
        """KeyError for a name that nobody added: it would otherwise pass for the base."""
        if name is not None and name not in self._configs:
            raise KeyError(f"There is no adapter named {name!r}; there are {', '.join(self._configs) or 'none'}.")

    def add(self, name: str, *, r: int, alpha: int, seed: int) -> None:
        """A new adapter that changes nothing yet: A random from `seed`, B zero."""
        if not self._targets:
            raise ModelError(f"{self._base_name} has no linear layers of a kind that an adapter can be put on.")
        config = peft.LoraConfig(
            task_type="CAUSAL_LM", r=r, lora_alpha=alpha, lora_dropout=0.0, target_modules=self._targets,
            base_model_name_or_path=self._base_name,
            fan_in_fan_out=any(isinstance(m, Conv1D) for m in self._model.modules()),  # GPT-2's layers lie the other way round
        )
        self._inject(name, config, seed)

    def add_from(self, name: str, folder: str | Path) -> None:
        """An adapter from a folder in PEFT's layout, to go on training or to serve as a reference."""
        config, weights = _read(Path(folder))
        head = next(path for path, m in self._model.named_modules() if m is self._model.get_output_embeddings())
        if any(key.startswith(f"base_model.model.{head}.") for key in weights):
            raise ModelError(f"The adapter in {folder} also changes the output head, which is kept as it is here.")
        self._inject(name, config, seed=0)
        try:
            self._fill(name, weights, where=str(folder))
        except ModelError:
            self.remove(name)
            raise

    def copy(self, source: str, name: str) -> None:
        """A second adapter with the same numbers, for example a frozen reference."""
        self._inject(name, self._configs[source], seed=0)
        self._fill(name, {key: p.detach() for key, p in self.parameters(source).items()}, where=source)

    def remove(self, name: str) -> None:
        for layer in self._layers:
            layer._active_adapter = []
            layer.delete_adapter(name)
        del self._configs[name]
        self._active = None
        self._switch_off()

    def parameters(self, name: str) -> dict[str, nn.Parameter]:
        """The adapter's trainable tensors by the key PEFT's file format gives them."""
        found = {}
        for path, module in self._model.named_modules():
            if isinstance(module, BaseTunerLayer):
                for kind in ("lora_A", "lora_B"):
                    if name in getattr(module, kind):
                        found[f"base_model.model.{path}.{kind}.weight"] = getattr(module, kind)[name].weight
        return found

    def fingerprint(self, name: str) -> str:
        """A short hash that changes when any number of the adapter changes."""
        digest = hashlib.sha256()
        for key, parameter in self.parameters(name).items():
            digest.update(key.encode())
            digest.update(parameter.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    def save(self, name: str, folder: Path) -> None:
        """Write `adapter_config.json` and `adapter_model.safetensors` into an existing folder."""
        self._configs[name].save_pretrained(folder)
        weights = {key: p.detach().cpu().contiguous() for key, p in self.parameters(name).items()}
        save_file(weights, folder / WEIGHTS_FILE, metadata={"format": "pt"})

    def load(self, name: str, folder: Path) -> None:
        """Overwrite an adapter's numbers with those of a folder written by `save`."""
        self._fill(name, _read(folder)[1], where=str(folder))

    @contextlib.contextmanager
    def active(self, name: str | None) -> Iterator[None]:
        """Inside, every forward uses this adapter; None is the bare base. Leave it before handing control away."""
        self._switch(name)
        self._now = name
        try:
            yield
        finally:
            self._now = None
            self._switch_off()

    def once_more(self) -> tuple[contextlib.AbstractContextManager, contextlib.AbstractContextManager]:
        """For a layer that is computed again in the backward pass, outside of `active`: nothing now, then the adapter of now."""
        return contextlib.nullcontext(), self.active(self._now)

    def _switch(self, name: str | None) -> None:
        if name is None:
            return self._switch_off()
        self.require(name)
        for layer in self._layers:
            if name != self._active:
                layer._active_adapter = [name]
            layer._disable_adapters = False
        self._active = name

    def _switch_off(self) -> None:
        # Here and above set directly: PEFT's own switches also turn requires_grad off for the adapters of other runs.
        for layer in self._layers:
            layer._disable_adapters = True

    def _inject(self, name: str, config: peft.LoraConfig, seed: int) -> None:
        if name in self._configs:
            raise ValueError(f"There is already an adapter named {name!r}.")
        if not name or "." in name:  # torch takes a dot for a path between modules
            raise ValueError(f"An adapter cannot be named {name!r}: use a name without dots.")
        with torch.random.fork_rng(devices=[]):  # PEFT draws A from the global generator
            torch.manual_seed(seed)
            try:
                peft.inject_adapter_in_model(config, self._model, adapter_name=name)
            except ValueError as error:
                raise ModelError(f"The adapter does not fit this model: {error}") from error
        del self._model.peft_config  # the configs are kept here; PEFT would take the attribute for a mistake next time
        self._layers = [m for m in self._model.modules() if isinstance(m, BaseTunerLayer)]
        self._configs[name] = config
        self._active = None
        for layer in self._layers:
            layer.eval()
        parameters = self.parameters(name)
        if not parameters:
            raise ModelError("The adapter has no trainable parameter, so nothing would be learned.")
        for parameter in parameters.values():
            parameter.data = parameter.data.float()
        for each in self._configs:  # PEFT lets only one learn
            for parameter in self.parameters(each).values():
                parameter.requires_grad_(True)
        self._switch_off()

    def _fill(self, name: str, weights: dict[str, Tensor], where: str) -> None:
        parameters = self.parameters(name)
        if set(parameters) != set(weights) or any(parameters[key].shape != weights[key].shape for key in weights):
            raise ModelError(f"The adapter in {where} does not fit this model: its layers or their sizes differ.")
        with torch.no_grad():
            for key, value in weights.items():
                parameters[key].copy_(value)


def _linear_layers(model: nn.Module) -> list[str]:
    """Names of the linear layers LoRA goes on: all but the output head and what only chooses between experts."""
    head = model.get_output_embeddings()
    paths = [path for path, m in model.named_modules()
             if isinstance(m, (nn.Linear, Conv1D)) and m is not head and not type(m).__name__.endswith("Router")]
    return sorted({path.rsplit(".", 1)[-1] for path in paths})


def _read(folder: Path) -> tuple[peft.LoraConfig, dict[str, Tensor]]:
    for file in (CONFIG_FILE, WEIGHTS_FILE):
        if not (folder / file).is_file():
            raise ModelError(f"{folder} is not a LoRA adapter: it has no {file}.")
    try:
        settings = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        weights = load_file(folder / WEIGHTS_FILE)
    except (ValueError, SafetensorError) as error:
        raise ModelError(f"The adapter in {folder} cannot be read: {error}") from error
    more = [name for name in NOT_PLAIN if settings.get(name) not in (None, False, "none", [], {})]
    if str(settings.get("init_lora_weights")).lower().startswith(CHANGED_BASE):
        more.append("init_lora_weights")
    if settings.get("peft_type") != "LORA" or more:
        what = ", ".join(more) or "peft_type"
        raise ModelError(f"The adapter in {folder} is not a plain LoRA on linear layers, which is what can be trained here: "
                         f"its {CONFIG_FILE} sets {what}.")
    config = peft.LoraConfig.from_pretrained(str(folder))
    config.lora_dropout, config.inference_mode, config.init_lora_weights = 0.0, False, True
    return config, weights
