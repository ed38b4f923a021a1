"""What a run will take, before it starts: memory part by part, seconds per step, and the micro-batch that fits.

Works from a model's config.json and the run's settings alone, without torch, so the page can show it while a person types.
After the first steps `compare` puts what was measured beside what was predicted, and `Corrections` scale the next plans by
it. A reward model's size is read from its files. Leaves out the measuring itself (`memory`, `forward.speed`), who keeps it
(`storage.plans`), and what a reward model computes.

    L layers · D hidden · F inner width · q, k widths of all query and all key heads · V vocabulary · r adapter rank
    P prompt tokens · G completions · C completion tokens · e bytes of one number of the base
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from lab.config import RunConfig
from lab.models.registry import ModelError, resolve, weight_bytes

OWN_LAYERS = ("llama", "qwen2", "qwen3")  # families whose layers are written for training here (`merged.FAMILIES`)
PROGRAM = 0.55e9  # Python, torch, transformers and what their allocator keeps
QUANTISING = 0.2e9  # what bitsandbytes and the 16-bit weights it read leave in a CPU process, measured
CUDA_CONTEXT = 0.5e9  # on the card, beside everything counted
NF4 = 0.516  # bytes a weight: 4 bits and doubly quantised scales (QLoRA, arXiv 2305.14314 §3)
MODULES_OVERHEAD = 2.5  # bytes kept for each number of a layer's own modules with PEFT, measured
HEAD_CHUNK = 2**22 * 12  # logits alive at once, in the base's format, as float32, as probabilities and again rounded
MARGIN = 0.92  # of the memory there is, to be on the safe side of the estimate
SMALLEST_BATCH = 64
MAX_ROWS = 64  # that decode together (`decode`, which needs torch, has these three, too)
SLOTS = 64  # for written tokens when prompts have been read (`shared_cache`)
SHORTEST_BUCKET = 128  # slots of the smallest of CUDA's fixed buffers (`static_decode`)
COPY_ROOM = 3  # copies that must fit into free memory before sampling gets a merged one (`fast_path`)
# Measured with two models in three formats on one core:
DECODE_CALLS, DECODE_CALLS_ONCE = 380, 1300  # small operations that a new token's time comes to: each layer's, and the rest's
LEARN_CALLS = 600  # those of a layer in two forwards and a backward
LEARN_SHARE = 0.6  # of the machine's speed that learning reaches; the rest of its time goes into norms, attention, adapters
MEMORY_BAND, PACE_BAND = (0.8, 2.0), (0.1, 20.0)  # what a correction may be: beyond it something else went on


FLOAT32_BELOW = 50_000_000  # parameters up to which float32 costs nothing worth saving, and keeps KL free of rounding
WORTH_ROUNDING = 1.5  # bfloat16 must be this many times as fast
PART_NAMES = dict(weights="base model", adapter="adapter and its optimiser", program="program", rewards="reward models",
                  head_copy="vocabulary, as sampling reads it", copy="copy for sampling", cache="keys and values",
                  activations="kept for learning", workspace="work space",
                  head="vocabulary")


def number_format(device: str, parameters: int, memory: float, faster: Callable[[], float]) -> tuple[str, str]:
    """The base's number format and a sentence why. `faster()` tells how many times as fast bfloat16 products are on the CPU."""
    if device == "cuda":
        return "bfloat16", "bfloat16: half of float32's memory, and this GPU computes with it."
    if parameters < FLOAT32_BELOW:
        return "float32", "float32: the model is small, so exact numbers cost nothing."
    if 4 * parameters > memory / 2:
        return "bfloat16", "bfloat16: in float32 the weights would take more than half of this machine's memory."
    if device != "cpu":
        return "float32", f"float32: bfloat16 is not tried out on {device}."
    ratio = faster()
    if ratio >= WORTH_ROUNDING:
        return "bfloat16", f"bfloat16: matrix products are {ratio:.1f} times as fast here as in float32."
    return "float32", f"float32: bfloat16 is only {ratio:.1f} times as fast on this processor."


@dataclass(frozen=True)
class ModelShape:
    """The sizes that decide memory and time."""

    family: str
    layers: int
    hidden: int
    inner: int
    query_width: int
    key_width: int
    vocabulary: int
    tied: bool

    @classmethod
    def of(cls, config: dict[str, Any]) -> ModelShape:
        """From config.json. Raises KeyError with the missing name for a config of an unknown layout."""
        config = config.get("text_config", config)
        size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        return cls(
            family=config.get("model_type", ""), layers=config["num_hidden_layers"], hidden=config["hidden_size"],
            inner=config["intermediate_size"], query_width=size * config["num_attention_heads"],
            key_width=size * (config.get("num_key_value_heads") or config["num_attention_heads"]),
            vocabulary=config["vocab_size"], tied=config.get("tie_word_embeddings", True),
        )

    @property
    def linear(self) -> int:
        """Weights of the layers, which LoRA sits on and 4 bits apply to."""
        attention = self.hidden * (2 * self.query_width + 2 * self.key_width)
        return self.layers * (attention + 3 * self.hidden * self.inner)

    @property
    def embeddings(self) -> int:
        """Weights of embeddings and head."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    def lora(self, r: int) -> int:
        """Weights of an adapter of rank r on every linear layer."""
        d, f, q, k = self.hidden, self.inner, self.query_width, self.key_width
        return self.layers * r * ((d + q) + 2 * (d + k) + (q + d) + 2 * (d + f) + (f + d))


@dataclass(frozen=True)
class Speed:
    """What the machine does: operations a second in matrix products, bytes a second when reading weights, and seconds to
    start one small operation, of which a small model's steps consist."""

    flops: float
    bandwidth: float
    call: float = 0.0


@dataclass(frozen=True)
class Written:
    """Tokens of completions: mean and longest."""

    mean: float
    longest: float


@dataclass(frozen=True)
class Corrections:
    """Measured over predicted, of memory and of seconds, in an earlier run of the same model on this machine."""

    memory: float = 1.0
    pace: float = 1.0

    def __post_init__(self):
        object.__setattr__(self, "memory", min(max(self.memory, MEMORY_BAND[0]), MEMORY_BAND[1]))
        object.__setattr__(self, "pace", min(max(self.pace, PACE_BAND[0]), PACE_BAND[1]))


@dataclass(frozen=True)
class Plan:
    """Bytes by part, the peak they make, and what to set."""

    parts: dict[str, float]  # weights, adapter, program, rewards, head_copy, then by phase: copy, cache | activations, workspace, head
    sampling: float
    training: float
    micro_batch_tokens: int
    checkpointing: bool
    fits: bool | None  # None: the memory is not known
    seconds: float | None  # of a step whose completions all reach their limit; None: the machine's speed is not known
    not_counted: tuple[str, ...] = ()  # reward models that are not on this machine yet

    @property
    def peak(self) -> float:
        return max(self.sampling, self.training)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, with peak and sentence."""
        return asdict(self) | {"peak": self.peak, "sentence": self.sentence}

    @property
    def lines(self) -> list[str]:
        """The plan for a terminal: what it says, memory by part, time."""
        parts = ", ".join(f"{PART_NAMES[name]} {size / 1e9:.2f}" for name, size in self.parts.items() if size >= 5e6)
        time = [] if self.seconds is None else [f"A step takes at most about {_seconds_text(self.seconds)}."]
        return [self.sentence, f"In GB: {parts}.", *time]

    @property
    def sentence(self) -> str:
        """What the plan says about fitting, for a person."""
        need = f"About {self.peak / 1e9:.1f} GB at the peak, while {'sampling' if self.sampling > self.training else 'learning'}"
        batch = f"{self.micro_batch_tokens} tokens at a time"
        how = f", {batch}" + (" and layers computed twice to save memory" if self.checkpointing else "")
        too_much = ": more than there is. Take fewer or shorter completions, or a smaller model."
        return need + how + (too_much if self.fits is False else ".") + "".join(
            f" The reward model {name} is not on this machine yet and is not counted." for name in self.not_counted)


def plan(config: RunConfig, shape: ModelShape, *, prompt_tokens: int, device: str, dtype: str, load_in_4bit: bool,
         memory: float | None = None, speed: Speed | None = None, corrections: Corrections = Corrections()) -> Plan:
    """The plan with the largest micro-batch that fits into `memory` bytes.

    `prompt_tokens` is a prompt's usual length. Layers are computed twice (checkpointing) only if nothing else fits.
    """
    work = _Work(config, shape, prompt_tokens, device, dtype, load_in_4bit, memory, corrections)
    seconds = None if speed is None else work.seconds(speed, work.full)
    budgets = [min(config.micro_batch_tokens, math.ceil(work.everything(work.full)))]
    while budgets[-1] // 2 >= max(SMALLEST_BATCH, prompt_tokens + config.max_completion_length):
        budgets.append(budgets[-1] // 2)
    for checkpointing in (False, True):
        for budget in budgets:
            made = replace(work.estimate(budget, checkpointing, work.full), seconds=seconds)
            if memory is None or made.peak <= MARGIN * memory:
                return replace(made, fits=None if memory is None else True)
    return replace(made, fits=False)


def compare(made: Plan, config: RunConfig, shape: ModelShape, written: Written, *, prompt_tokens: float, device: str, dtype: str,
            load_in_4bit: bool, memory: float | None, speed: Speed | None, peak: float, seconds: float,
            waited: float = 0.0) -> dict[str, Any]:
    """Measured beside predicted, for steps that wrote `written`: {peak, seconds, memory, pace, sentence}.

    `memory` and `pace` of the result are measured over predicted, where what is predicted is what these very completions
    should have taken, uncorrected: they mostly end before their limit. `waited` of the `seconds` went by waiting for rewards,
    which says nothing about this machine's pace.
    """
    work = _Work(config, shape, prompt_tokens, device, dtype, load_in_4bit, memory, Corrections())
    budget = min(made.micro_batch_tokens, math.ceil(work.everything(written)))
    ratios = {"memory": peak / work.estimate(budget, made.checkpointing, written).peak,
              "pace": None if speed is None else (seconds - waited) / work.seconds(speed, written)}
    predicted = f"{made.peak / 1e9:.2f} GB" + (f" and {_seconds_text(made.seconds)} a step" if made.seconds else "")
    shorter = "" if written.longest >= config.max_completion_length else (
        f" Completions had {written.mean:.0f} tokens on average, at most {written.longest:.0f} of {config.max_completion_length}.")
    return {"peak": peak, "seconds": seconds, **ratios,
            "sentence": f"Planned at most {predicted}; measured {peak / 1e9:.2f} GB and {_seconds_text(seconds)}.{shorter}"}


def _seconds_text(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"


@dataclass(frozen=True)
class _Work:
    """One step of a run on one machine."""

    config: RunConfig
    shape: ModelShape
    prompt_tokens: float
    device: str
    dtype: str
    load_in_4bit: bool
    memory: float | None
    corrections: Corrections

    @property
    def full(self) -> Written:
        """Completions that all reach their limit."""
        return Written(self.config.max_completion_length, self.config.max_completion_length)

    @property
    def bytes(self) -> int:
        """Of one number of the base."""
        return 4 if self.dtype == "float32" else 2

    @property
    def base(self) -> float:
        linear = (NF4 if self.load_in_4bit else self.bytes) * self.shape.linear
        return linear + self.bytes * self.shape.embeddings

    @property
    def program(self) -> float:
        if self.device == "cuda":
            return CUDA_CONTEXT
        return PROGRAM + (QUANTISING if self.load_in_4bit else 0.0)

    @property
    def copy(self) -> float:
        """A merged copy of the layers for sampling: only our own layers have one, and only with room."""
        layers = self.bytes * self.shape.linear
        no_room = self.memory is not None and COPY_ROOM * layers > self.memory - self.base - self.program
        if self.shape.family not in OWN_LAYERS or no_room:
            return 0.0
        return layers

    @property
    def head_copy(self) -> float:
        """The head laid out anew for sampling (`merged.FewRowsLinear`), which stays from the first token on."""
        return self.bytes * self.shape.vocabulary * self.shape.hidden if self.device == "cpu" else 0.0

    @cached_property
    def reward_models(self) -> dict[str, float | None]:
        """Bytes of each, which stays beside the base from its first call on. None: not on this machine."""
        return {name: _bytes_here(name) for name in _reward_models(self.config)}

    def cache(self, written: Written) -> float:
        """Keys and values while sampling.

        In CUDA's fixed buffers (`static_decode`) lanes and slots are powers of two, and what lay in the buffer before is
        still there while it moves into the next. Prompts that wait take over the places of those that have ended.
        """
        token = 2.0 * self.shape.layers * self.shape.key_width * (self.bytes if self.device == "cuda" else 4)
        if self.device != "cuda" or self.shape.family not in OWN_LAYERS:
            return token * self.everything(written)
        seats = self.config.num_generations
        prompts = min(self.config.prompts_per_step, max(1, MAX_ROWS // seats))
        lanes, width = _power_of_two(prompts), max(SHORTEST_BUCKET, _power_of_two(self.prompt_tokens))
        slots = max(SHORTEST_BUCKET, _power_of_two(written.longest - 1))  # the last token is written and never read
        if slots > SHORTEST_BUCKET:
            before = lanes * (width + seats * slots / 2)
        else:
            before = prompts * (self.prompt_tokens + seats * SLOTS)
        return token * (lanes * (width + seats * slots) + before)

    def answers(self, written: Written) -> float:
        """Completion tokens of a step."""
        return self.config.prompts_per_step * self.config.num_generations * written.mean

    def everything(self, written: Written) -> float:
        """Tokens of a step: a prompt counts once for its group."""
        return self.config.prompts_per_step * self.prompt_tokens + self.answers(written)

    def estimate(self, budget: int, checkpointing: bool, written: Written) -> Plan:
        e, shape, config = self.bytes, self.shape, self.config
        own = shape.family in OWN_LAYERS
        # Beside the base: adapter, its gradient and Adam's two moments, all float32.
        parts = dict(weights=self.base, adapter=16.0 * shape.lora(config.lora_r) * (2 if config.algorithm == "ppo" else 1),
                     program=self.program)
        parts["rewards"] = sum(filter(None, self.reward_models.values()), 0.0)
        parts["head_copy"] = self.head_copy
        parts["copy"] = self.copy
        parts["cache"] = self.cache(written)
        parts["activations"] = budget * _kept(shape, config.lora_r, e, own, checkpointing)
        parts["workspace"] = _workspace(shape, config.num_generations * written.mean, self.prompt_tokens + written.longest, budget, e)
        if self.load_in_4bit:
            parts["workspace"] += e * shape.hidden * shape.inner  # one weight unpacked
        parts["head"] = HEAD_CHUNK + e * budget * shape.hidden
        parts = {name: size * self.corrections.memory for name, size in parts.items()}
        always = sum(parts[name] for name in ("weights", "adapter", "program", "rewards", "head_copy"))
        return Plan(
            parts=parts, sampling=always + parts["copy"] + parts["cache"],
            training=always + parts["activations"] + max(parts["workspace"], parts["head"]),
            micro_batch_tokens=budget, checkpointing=checkpointing, fits=None, seconds=None,
            not_counted=tuple(name for name, size in self.reward_models.items() if size is None),
        )

    def seconds(self, speed: Speed, written: Written) -> float:
        """Of a step: two forwards and a backward, weights read once for each new token, and the small operations in between."""
        shape, head = self.shape, self.shape.vocabulary * self.shape.hidden
        rows = self.config.prompts_per_step * self.config.num_generations
        forwards = 2 + 4 * self.config.num_iterations  # the reference once; forward and backward for each use of a rollout
        products = forwards * (shape.linear * self.everything(written) + head * self.answers(written))
        learning = products / (LEARN_SHARE * speed.flops) + LEARN_CALLS * shape.layers * self.config.num_iterations * speed.call
        at_once = min(rows, MAX_ROWS)
        read = self.bytes * (shape.linear + head) / speed.bandwidth
        token = max(read, 2 * (shape.linear + head) * at_once / speed.flops)
        token += (DECODE_CALLS * shape.layers + DECODE_CALLS_ONCE) * speed.call
        return (learning + math.ceil(rows / MAX_ROWS) * written.longest * token) * self.corrections.pace


def _reward_models(config: RunConfig) -> list[str]:
    """The models named by `reward_model(…)` among the rewards, those of evaluations too if there are any."""
    from lab.rewards.resolve import RewardNotFound, parse_call

    names = []
    for reward in [*config.rewards, *(config.eval_rewards if config.eval_steps else ())]:
        try:
            name, parameters = parse_call(reward) if isinstance(reward, str) else ("", {})
        except RewardNotFound:  # a file, or a reward of the person's own
            continue
        if name == "reward_model" and parameters.get("model"):
            names.append(parameters["model"])
    return names


def _bytes_here(model: str) -> float | None:
    try:
        folder = resolve(model).folder
        return None if folder is None else weight_bytes(folder)
    except ModelError:  # what is wrong with it is said when the run begins
        return None


def _power_of_two(count: float) -> int:
    """The smallest power of two that is not below `count`."""
    return 1 << max(0, math.ceil(count) - 1).bit_length()


def _kept(shape: ModelShape, r: int, e: int, own: bool, checkpointing: bool) -> float:
    """Bytes kept for the backward pass for each token, over all layers."""
    d, f, q, k = shape.hidden, shape.inner, shape.query_width, shape.key_width
    if own:  # both residuals, q, k, v, what attention gave, gate and up, the adapters' inner values, two norms
        layer = e * (2 * d + 2 * q + 2 * k + 2 * f + 7 * r) + 8
    else:
        layer = MODULES_OVERHEAD * (8 * d + 2 * q + 2 * (q + 2 * k) + 5 * f)
    return shape.layers * e * d + layer if checkpointing else shape.layers * layer


def _workspace(shape: ModelShape, group_answers: float, seen: float, budget: int, e: int) -> float:
    """Bytes alive for a moment while one layer is computed backwards: attention scores, and the inner width."""
    scores = max(1, shape.query_width // 64) * min(budget, group_answers) * seen
    return e * 5 * scores + e * 5 * budget * shape.inner
