"""Difficulty scans and the look before a run: numbers worked out by hand, and the real tiny model."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.config import RunConfig
from lab.presets import preset
from lab.records import Completion, Group
from lab.rewards import summarise
from lab.tasks import load_task
from lab.tasks.difficulty import Difficulty, Scan, live_probability
from lab.training.difficulty import scan
from lab.training.preflight import judge, preflight

FIRST_RUN = RunConfig(**preset("first-run").settings)


def scanned(*passed: int, samples: int = 4) -> Scan:
    return Scan([Difficulty(row, f"prompt {row}", n, samples) for row, n in enumerate(passed)])


def test_the_chance_of_a_live_group_is_counted_over_all_choices_of_samples():
    # 1 right of 4, groups of 2: of the 6 pairs 3 hold the right one
    assert live_probability(1, 4, 2) == pytest.approx(3 / 6)
    assert live_probability(2, 4, 4) == 1.0 and live_probability(0, 4, 2) == 0.0 and live_probability(4, 4, 3) == 0.0
    with pytest.raises(ValueError, match="at least as many samples"):
        live_probability(1, 4, 8)


@given(st.integers(1, 8).flatmap(lambda k: st.tuples(st.integers(0, k), st.just(k), st.integers(1, k))))
def test_the_estimate_equals_brute_force(case):
    passed, samples, size = case
    outcomes = [1] * passed + [0] * (samples - passed)
    groups = list(itertools.combinations(outcomes, size))
    assert live_probability(passed, samples, size) == pytest.approx(sum(len(set(group)) > 1 for group in groups) / len(groups))


def test_shares_and_what_is_kept():
    found = scanned(0, 1, 2, 4, 3)  # p = 0, 0.25, 0.5, 1, 0.75
    assert found.share_with_signal == pytest.approx(3 / 5)
    assert found.expected_live(2) == pytest.approx((0 + 3 / 6 + 4 / 6 + 0 + 3 / 6) / 5)
    assert found.kept(0.1, 0.9) == [1, 2, 4] and found.kept(0.25, 0.5) == [1, 2] and found.easiest_first() == [3, 4, 2, 1, 0]
    assert found.summary() == {"judged": 5, "of": 5, "share_with_signal": pytest.approx(0.6), "all_right": 1, "all_wrong": 1,
                               "live": {"2": pytest.approx(1 / 3), "4": pytest.approx(0.6)}}


def test_prompts_that_nothing_could_judge_are_left_out_of_every_share():
    found = Scan([Difficulty(0, "a", 0, 0), Difficulty(1, "b", 1, 2)])
    assert found.share_with_signal == 1.0 and found.kept() == [1] and found.summary()["judged"] == 1
    assert Scan([]).share_with_signal == 0.0


def test_the_tiny_model_finds_sums_hard_and_single_prompts_differ(policy):
    found = scan(FIRST_RUN, samples=8, prompts=16, policy=policy)
    again = scan(FIRST_RUN, samples=8, prompts=16, policy=policy)
    assert found == again and len(found.prompts) == 16 and all(p.samples == 8 for p in found.prompts)
    assert 0.3 < found.share_with_signal < 1 and len({p.passed for p in found.prompts}) > 1
    rows = load_task(FIRST_RUN.task, FIRST_RUN.seed).rows(0, 16)
    assert [p.prompt for p in found.prompts] == [row["prompt"] for row in rows]


# -- the look before a run


def test_a_first_run_can_be_learned_and_every_reward_has_a_best_and_a_worst(policy):
    seen = preflight(FIRST_RUN, policy=policy)
    assert seen.can_learn and seen.groups == 4 and seen.live >= 2 and seen.completions == 32 and not seen.stop
    for reward in seen.rewards:
        assert reward.best.value == 1.0 and reward.worst.value == 0.0 and reward.best.text != reward.worst.text, reward.name
    assert "<answer>" in seen.rewards[1].best.text


def test_it_changes_nothing_in_the_run_that_follows(policy):
    import torch

    from lab.trainer import Trainer

    def two_steps(look: bool):
        torch.manual_seed(5)
        if look:
            preflight(config, policy=policy)
        global_numbers = torch.rand(3).tolist()
        trainer = Trainer(config, policy=policy, adapter="looked" if look else "unlooked")
        try:
            steps = [next(trainer), next(trainer)]
            return global_numbers, [[c.token_ids for g in step.groups for c in g.completions] for step in steps], [
                {k: v for k, v in step.metrics.items() if "time" not in k} for step in steps]
        finally:
            trainer.close()

    config = FIRST_RUN.replace(prompts_per_step=2, num_generations=4, max_completion_length=16)
    assert two_steps(True) == two_steps(False)
    assert not [name for name in policy.adapters.names() if name.startswith("preflight")]


@pytest.mark.parametrize("changes, said", [
    (dict(max_completion_length=2), "All 32 completions were cut off at 2 tokens: raise Max tokens."),
    (dict(task=["Name a fruit."]), "Reward accuracy: raised ValueError"),
])
def test_what_cannot_be_learned_is_said_in_words(policy, changes, said):
    seen = preflight(FIRST_RUN.replace(**changes), policy=policy)
    assert not seen.can_learn and said in " ".join(seen.stop)


def made_groups(*rewards: list[dict[str, float | None]], text: str | None = None, finished: bool = True) -> list[Group]:
    """Groups whose completions have these rewards; the total is their sum."""
    groups = []
    for index, rows in enumerate(rewards):
        completions = [Completion(i, text or f"text {i}", [1], finished, row, None if None in row.values() else sum(row.values()))
                       for i, row in enumerate(rows)]
        groups.append(Group(index, f"prompt {index}", [1], {}, completions))
        summarise(groups[-1])
    return groups


A, F, AF = RunConfig(rewards=("accuracy",)), RunConfig(rewards=("format",)), RunConfig(rewards=("accuracy", "format"))


@pytest.mark.parametrize("config, groups, stop, warnings", [
    (A, made_groups([{"accuracy": 0.0}] * 4, [{"accuracy": 0.0}] * 4), "accuracy is never right", "gave 0 to every completion"),
    (A, made_groups([{"accuracy": 1.0}] * 4), "accuracy is always right already", "gave 1 to every completion"),
    (A, made_groups([{"accuracy": 1.0}] * 2, [{"accuracy": 0.0}] * 2), "within each group all completions got the same reward", ""),
    (A, made_groups([{"accuracy": None}] * 2), "no reward function applies", "applied to no completion"),
    (A, made_groups([{"accuracy": 0.0}] * 3, text="same"), "are the same text. Raise Temperature (it is 1)", ""),
    (A, made_groups([{"accuracy": 0.0}] * 3, finished=False), "All 3 completions were cut off at 256 tokens", ""),
    (AF, made_groups([{"accuracy": 0.0, "format": 0.0}, {"accuracy": 1.0, "format": 0.0}]), "", "format is never right"),
    (A, made_groups([{"accuracy": 0.0}, {"accuracy": 1.0}], *[[{"accuracy": 0.0}] * 2] * 3), "", "Only 1 of 4 groups has signal"),
    (A, made_groups([{"accuracy": 0.0}, {"accuracy": 1.0}], finished=False), "", "All 2 completions were cut off"),
])
def test_each_reason_has_its_own_sentence(config, groups, stop, warnings):
    seen = judge(groups, config.rewards, config)
    assert bool(seen.stop) == bool(stop) and stop in " ".join(seen.stop) and warnings in " ".join(seen.warnings), (seen.stop, seen.warnings)
    assert all(sentence.endswith(".") for sentence in [*seen.stop, *seen.warnings])


def test_the_command_line_stops_where_nothing_can_be_learned(tmp_path, capsys):
    from lab.cli import main

    settings = ["--preset", "first-run", "--max-completion-length", "2", "--prompts-per-step", "1", "--runs", str(tmp_path / "runs")]
    assert main(["train", "--preflight", *settings]) == 1
    assert "raise Max tokens" in capsys.readouterr().out and not (tmp_path / "runs").exists()


# -- the prompt as the model sees it


@pytest.mark.parametrize("system_prompt", ["", None, "Answer briefly."])
@pytest.mark.parametrize("prompt", ["What is 2 + 3?", [{"role": "system", "content": "S"}, {"role": "user", "content": "U <b>&"}]])
def test_the_rendered_prompt_is_what_the_policy_reads(policy, prompt, system_prompt):
    from lab.models.chat import rendered
    from lab.models.registry import resolve

    text = rendered(resolve("tiny"), prompt, system_prompt)
    assert policy.tokenizer(text, add_special_tokens=False)["input_ids"] == policy.prompt_ids(prompt, system_prompt)
