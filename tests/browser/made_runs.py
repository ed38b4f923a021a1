"""Runs made up for the page's tests: written to a real store through the door the engine uses."""

from __future__ import annotations

import math
import random

from lab.config import RunConfig
from lab.records import Completion, Group, StepRecord
from lab.store import Store

CONFIG = RunConfig(task="add2", max_completion_length=48, reward_weights=(0.8, 0.2), max_steps=40)
# name → (text, accuracy, format, tokens); the group mean below is 0.4, the sample std 0.4536
HAND_WORKED = [("<think>hmm</think><answer>81</answer>", 0, 1, 12), ("<think>9+3=12, 6+1+1=8</think><answer>82</answer>", 1, 1, 22),
               ("The answer is 82.", 0, 0, 8), ("<answer>82</answer>", 1, 0, 6), ("<think>hmm</think><answer>72</answer>", 0, 1, 12),
               ("I like numbers. I like numbers. Numbers are fun. " * 3, 0, 0, 48), ("<think>hmm</think><answer>82</answer>", 1, 1, 12),
               ("<answer>84</answer><think>hmm</think>", 0, 0, 11)]
HOSTILE = ["<img src=x onerror=\"window.pwned=1\">", "</script><script>window.pwned=2</script>", "${Object.assign(window,{pwned:3})}",
           r"\unit{m} \x \u12 $\frac{1}{2}$", "{{value}} {{#each x}}", "<svg/onload=window.pwned=4>", "line one\nline two\ttab", "‮txt.exe"]


def hand_worked_group(index: int = 0) -> Group:
    """What is 69 + 13?: rewards 0.2, 1, 0, 0.8, 0.2, 0, 1, 0."""
    completions = [Completion(i, text, list(range(n)), n < 48, {"accuracy": float(acc), "format": float(form)}, 0.8 * acc + 0.2 * form)
                   for i, (text, acc, form, n) in enumerate(HAND_WORKED)]
    return scored(Group(index, "What is 69 + 13?", [1, 2, 3], {"prompt": "What is 69 + 13?", "answer": "82"}, completions))


def hostile_group(index: int = 0) -> Group:
    completions = [Completion(i, text, [1, 2, 3], True, {"accuracy": float(i % 2), "format": 0.0}, 0.8 * (i % 2))
                   for i, text in enumerate(HOSTILE)]
    return scored(Group(index, HOSTILE[0], [1], {"prompt": HOSTILE[0], "answer": HOSTILE[2]}, completions))


def scored(group: Group) -> Group:
    """Fills mean, sample std and advantages."""
    rewards = [c.reward for c in group.completions]
    group.mean = sum(rewards) / len(rewards)
    group.std = math.sqrt(sum((r - group.mean) ** 2 for r in rewards) / (len(rewards) - 1))
    group.dead = group.std < 1e-6
    for completion in group.completions:
        completion.advantage = (completion.reward - group.mean) / (group.std + 1e-4)
    return group


def metrics(step: int, seed: int = 0) -> dict[str, float]:
    """A plausible course: the reward climbs, k3 jumps now and then."""
    rng = random.Random(seed * 100_003 + step)
    reached = 1 - math.exp(-step / 11)
    accuracy, form = 0.15 + 0.77 * reached + rng.gauss(0, 0.04), 0.48 + 0.5 * reached + rng.gauss(0, 0.02)
    accuracy, form = min(1.0, max(0.0, accuracy)), min(1.0, max(0.0, form))
    live = max(0, min(8, round(8.4 - 5.5 * reached + rng.gauss(0, 1))))
    return {"loss": rng.gauss(0, 0.004), "grad_norm": 0.4 + 0.6 * math.exp(-step / 9) + abs(rng.gauss(0, 0.08)), "learning_rate": 2e-3,
            "num_tokens": 2600.0 * step, "step_time": 0.97 + rng.gauss(0, 0.03), "completions/mean_length": 13.5 + 6.5 * reached,
            "completions/clipped_ratio": 0.0, "rewards/accuracy/mean": accuracy, "rewards/accuracy/std": 0.3, "rewards/format/mean": form,
            "rewards/format/std": 0.2, "reward": 0.8 * accuracy + 0.2 * form, "reward_std": 0.3,
            "frac_reward_zero_std": 1 - live / 8, "kl": 1.94 if step in (12, 17) else 0.11 * reached + abs(rng.gauss(0, 0.008)),
            "entropy": 0.05 + 0.44 * math.exp(-step / 8), "groups/live": float(live), "groups/total": 8.0}


def groups(step: int, seed: int = 0) -> list[Group]:
    """Eight groups: the hand-worked one, then ever more that are all right."""
    made = [hand_worked_group(0)]
    for index in range(1, 8):
        rng = random.Random(seed * 7919 + step * 31 + index)
        a, b = rng.randint(1, 99), rng.randint(1, 99)
        chance = 0.15 + 0.8 * (1 - math.exp(-step / 11))
        completions = []
        for i in range(8):
            right, form = rng.random() < chance, rng.random() < chance + 0.2
            answer = a + b if right else a + b + rng.choice((-10, 1, 10))
            text = f"<think>{a}+{b}</think><answer>{answer}</answer>" if form else f"<answer>{answer}</answer>"
            rewards = {"accuracy": float(right), "format": float(form)}
            completions.append(Completion(i, text, list(range(12 + rng.randint(0, 9))), True, rewards, 0.8 * right + 0.2 * form))
        made.append(scored(Group(index, f"What is {a} + {b}?", [1], {"prompt": f"What is {a} + {b}?", "answer": str(a + b)}, completions)))
    return made


def write_run(store: Store, *, owner: str = "local", name: str = "made up", steps: int = 23, status: str = "training",
              with_groups: bool = True, config: RunConfig = CONFIG) -> str:
    """A run with `steps` steps; groups for each step, or only for the last."""
    run = store.create_run(config.to_dict(), name=name, owner=owner, status=status)
    for step in range(1, steps + 1):
        write_step(store, run, step, with_groups or step == steps)
    return run


def write_step(store: Store, run: str, step: int, with_groups: bool = True) -> None:
    store.write_step(run, StepRecord(step, metrics(step), groups(step) if with_groups else []), seconds=0.97)
