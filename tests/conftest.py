"""The real tiny model, loaded once, and adapters on it that tests may train and throw away."""

from __future__ import annotations

import itertools
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest  # noqa: E402


@pytest.fixture(scope="session")
def policy():
    """The tiny model in float32 on one thread. Shared: leave no adapter behind."""
    from lab.policy import Policy

    return Policy.load("tiny", device="cpu", num_threads=1)


@pytest.fixture(scope="session")
def policy_4bit():
    pytest.importorskip("bitsandbytes", reason="bitsandbytes has no wheel for this machine")
    from lab.policy import Policy

    return Policy.load("tiny", device="cpu", load_in_4bit=True, num_threads=1)


@pytest.fixture(scope="module", autouse=True)
def no_made_up_run_is_left_going():
    from tests.webapp import end_all_runs

    end_all_runs()


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """A real engine process that is idle, on a runs folder of its own; the tests of a module share it."""
    from tests.engine_process import running_engine

    with running_engine(tmp_path_factory.mktemp("runs")) as engine:
        yield engine


@pytest.fixture
def store(engine):
    return engine.store


@pytest.fixture
def adapter(policy):
    """A random adapter that changes the model's output, as one in the middle of training does."""
    name = add_random_adapter(policy, seed=1)
    yield name
    policy.remove_adapter(name)


@pytest.fixture
def make_trainer(policy):
    """Trainers on the shared policy, each with an adapter of its own; their adapters are removed afterwards."""
    from lab.config import RunConfig
    from lab.trainer import Trainer

    trainers = []

    def make(**settings):
        config = RunConfig(**SMALL_RUN | settings)
        trainers.append(Trainer(config, policy=policy, adapter=f"run{next(_numbers)}"))
        return trainers[-1]

    make.adopt = trainers.append
    yield make
    for trainer in trainers:
        trainer.close()


def letters(completions, **kwargs):
    """Share of letters: a reward that every model, also an untrained one, gets more and less of."""
    texts = [message[0]["content"] for message in completions]
    return [sum(c.isalpha() for c in text) / max(1, len(text)) for text in texts]


SMALL_RUN = dict(model="tiny", task="add2", rewards=(letters,), num_generations=4, prompts_per_step=2, max_completion_length=12,
                 max_steps=6, learning_rate=1e-2, lora_r=4, lora_alpha=8)

_numbers = itertools.count()


def add_random_adapter(policy, *, seed: int, r: int = 4, scale: float = 0.05) -> str:
    """A new adapter whose B is not zero; returns its name."""
    import torch

    name = f"random{next(_numbers)}"
    policy.add_adapter(name, r=r, alpha=2 * r, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    for key, parameter in policy.adapters.parameters(name).items():
        if "lora_B" in key:
            parameter.data = scale * torch.randn(parameter.shape, generator=generator)
    return name


def roll(policy, adapter=None, prompts=("What is 69 + 13?", "72 - 18 = ?"), *, seed=0, **settings):
    """A rollout of the prompts, without texts and events."""
    import torch

    from lab.rollout import SamplingSettings, sample

    settings = SamplingSettings(**dict(num_generations=3, max_completion_length=24) | settings)
    ids = [policy.prompt_ids(prompt, "") for prompt in prompts]
    sampler = sample(policy, ids, adapter, settings, torch.Generator().manual_seed(seed))
    while True:
        try:
            next(sampler)
        except StopIteration as stop:
            return stop.value
