"""Reward functions: the contract with TRL, rewards of steps, names and files, built-ins."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest

from lab.records import Completion, Group
from lab.rewards import BUILTINS, RewardError, RewardNotFound, TrainerState, resolve, score, text_of
from lab.rewards.resolve import parse_call


def group(texts, index=0, prompt="What is 1 + 1?", **columns):
    completions = [Completion(i, text, list(range(len(text.split()) + 1)), True) for i, text in enumerate(texts)]
    return Group(index, prompt, [1, 2], {"prompt": prompt, **columns}, completions)


def scored(rewards, texts, weights=None, **columns):
    """The group after scoring."""
    made = group(texts, **columns)
    score(resolve(rewards), weights, [made])
    return made


def values(reward, texts, **columns):
    """What one reward gives for each text."""
    made = scored([reward], texts, **columns)
    (name,) = made.completions[0].rewards
    return [completion.rewards[name] for completion in made.completions]


# -- the contract


def test_a_function_gets_trls_keywords_group_after_group():
    seen = {}

    def spy(prompts, completions, completion_ids, answer, trainer_state, log_extra, log_metric, **kwargs):
        seen.update(prompts=prompts, completions=completions, ids=completion_ids, answer=answer, state=trainer_state, more=kwargs)
        return [0.0] * len(completions)

    groups = [group(["a", "b"], 0, "p", answer="1", level=3), group(["c", "d"], 1, "q", answer="2", level=4)]
    score(resolve([spy]), None, groups, trainer_state=TrainerState(global_step=7, max_steps=9), system_prompt="Be brief.")
    assert [c[0]["content"] for c in seen["completions"]] == ["a", "b", "c", "d"]
    assert seen["completions"][0][0]["role"] == "assistant"
    assert seen["prompts"][2] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "q"}]
    assert seen["answer"] == ["1", "1", "2", "2"]
    assert seen["more"] == {"level": [3, 3, 4, 4]}
    assert seen["ids"][0] == [0, 1]
    assert (seen["state"].global_step, seen["state"].max_steps) == (7, 9)


def test_a_function_is_called_once_per_batch():
    calls = []

    def count(completions, **kwargs):
        calls.append(len(completions))
        return [1.0] * len(completions)

    rewards = resolve([count])
    score(rewards, None, [group(["a", "b"]), group(["c"])])
    score(rewards, None, [group(["a", "b"]), group(["c"])])
    assert calls == [3, 3]


@pytest.mark.parametrize("function", [
    lambda completions, **kwargs: [len(c) for c in completions],
    lambda completions, **kwargs: [len(re.findall(".", c)) for c in completions],
    lambda completions, **kwargs: [len(c.strip()) if "a" in c else 0 for c in completions],
    lambda completions, **kwargs: [len(c[0]["content"]) for c in completions],
    lambda completions, **kwargs: [len(c[-1].get("content")) for c in completions],
    lambda completions, **kwargs: [len("".join(m["content"] for m in c)) for c in completions],
    lambda completions, **kwargs: [len(c if isinstance(c, str) else c[0]["content"]) for c in completions],
    lambda completions, **kwargs: [len(c[0]["content"]) if len(c) == 1 else -1 for c in completions],
    lambda completions, **kwargs: [len(text_of(c)) for c in completions],
    lambda completions: [len(f"{c}") for c in completions],
])
def test_functions_written_for_text_and_for_messages_both_work(function):
    reward = resolve([function])
    for _ in range(2):  # the second call knows the form already
        made = group(["abc", "abcde"])
        score(reward, None, [made])
        assert [c.reward for c in made.completions] == [3.0, 5.0]


def test_an_annotation_of_strings_is_believed_at_the_first_call():
    forms = []

    def typed(completions: list[str], **kwargs):
        forms.append(type(completions[0]))
        return [0.0 for _ in completions]

    scored([typed], ["a"])
    assert forms == [str]


def test_async_functions_work_also_where_an_event_loop_runs():
    import asyncio

    async def later(completions, **kwargs):
        await asyncio.sleep(0)
        return [1.0, 2.0]

    async def notebook():
        return values(later, ["a", "b"])

    assert values(later, ["a", "b"]) == [1.0, 2.0]
    assert asyncio.run(notebook()) == [1.0, 2.0]


def test_numpy_arrays_scalars_and_bools_are_numbers():
    assert values(lambda completions, **k: np.array([0.5, 1]), ["a", "b"]) == [0.5, 1.0]
    assert values(lambda completions, **k: [np.float32(0.5), True], ["a", "b"]) == [0.5, 1.0]
    assert values(lambda completions, **k: (Fraction(1, 4), 2), ["a", "b"]) == [0.25, 2.0]


@pytest.mark.parametrize("returned, row, said", [
    ([1.0], None, "1 values for 2 completions"),
    (3.0, None, "a list with one number or None"),
    ("ab", None, "a list with one number or None"),
    (None, None, "a list with one number or None"),
    ({"a": 1, "b": 2}, None, "a list with one number or None"),
    ([1.0, "1.0"], 1, "the str '1.0'; expected a number"),
    ([float("nan"), 1.0], 0, "returned nan; expected a finite number"),
    ([1.0, float("inf")], 1, "returned inf; expected a finite number"),
    ([1.0, [2.0]], 1, "the list [2.0]; expected a number"),
    ([10 ** 400, 1.0], 0, "expected a finite number"),
    ([1j, 1.0], 0, "expected a number"),
])
def test_a_wrong_return_is_refused_with_name_row_and_what_was_expected(returned, row, said):
    def broken(completions, **kwargs):
        return returned

    with pytest.raises(RewardError) as caught:
        scored([broken], ["a", "b"])
    assert (caught.value.function, caught.value.row) == ("broken", row)
    assert said in str(caught.value) and str(caught.value).startswith("Reward broken")


def test_the_row_is_also_given_as_prompt_and_completion():
    with pytest.raises(RewardError, match=r"row 3 \(prompt 2, completion 2\)"):
        score(resolve([lambda completions, **k: [0, 0, 0, "x"]]), None, [group(["a", "b"]), group(["c", "d"], 1)])


def test_an_exception_names_function_kind_and_line():
    def broken(completions, **kwargs):
        return [1 / 0 for _ in completions]

    with pytest.raises(RewardError, match=r"Reward broken: raised ZeroDivisionError: division by zero \(line \d+ of .*test_rewards"):
        scored([broken], ["a"])


def test_a_function_that_changes_what_it_was_given_changes_it_for_nobody_else():
    def greedy(prompts, completions, completion_ids, tests, **kwargs):
        for taken in (prompts[0], completions, completion_ids[0], tests[0]):
            taken.clear()
        return [0.0, 0.0]

    def later(prompts, completions, completion_ids, tests, **kwargs):
        return [len(prompts[0]) + len(ids) + sum(test) for ids, test in zip(completion_ids, tests, strict=True)]

    made = scored([greedy, later], ["a", "b c"], tests=[5, 7])
    assert [c.rewards["later"] for c in made.completions] == [15, 16]  # one message + 2 or 3 tokens + 5 + 7
    assert made.row["tests"] == [5, 7] and made.completions[0].token_ids == [0, 1]  # nor in the task's row


def test_sys_exit_in_a_function_is_its_error_and_not_the_end_of_the_training():
    def leaves(completions, **kwargs):
        sys.exit(3)

    with pytest.raises(RewardError, match=r"Reward leaves: raised SystemExit: 3 \(line \d+"):
        scored([leaves], ["a"])


def test_a_missing_column_is_named_with_those_that_exist():
    with pytest.raises(RewardError, match="it needs solution, .* there is prompts, completions, completion_ids, answer"):
        scored([lambda completions, solution, **k: [1.0]], ["a"], answer="1")


def test_a_failed_scoring_leaves_the_groups_as_they_were():
    made = group(["a", "b"])
    with pytest.raises(RewardError):
        score(resolve([lambda completions, **k: [1.0, 2.0], lambda completions, **k: [1.0]]), None, [made])
    assert made.completions[0].rewards == {} and made.completions[0].reward is None and made.mean is None


def test_log_extra_and_log_metric_arrive():
    def talkative(completions, log_extra, log_metric, **kwargs):
        log_extra("seen", [text_of(c).upper() for c in completions])
        log_metric("share", 0.0)
        log_metric("share", 1.0)
        return [0.0 for _ in completions]

    made = group(["a", "b"])
    assert score(resolve([talkative]), None, [made]) == {"share": 0.5}
    assert [c.extra for c in made.completions] == [{"seen": "A"}, {"seen": "B"}]


def test_a_column_called_like_a_parameter_of_a_builtin_does_no_harm():
    assert values("accuracy(source='number')", ["so 4", "5"], answer="4", source="a textbook") == [1.0, 0.0]


# -- rewards of single steps


def test_a_function_may_judge_steps_by_where_they_end():
    made = scored([lambda completions, **k: [[(7, 0.0), (3, 1.0)], None, []]], ["abc defg", "x", "y"])
    assert [c.steps.get("<lambda>") for c in made.completions] == [[(3, 1.0), (7, 0.0)], None, []]
    assert [c.reward for c in made.completions] == [0.5, None, None]  # the mean of its steps


def test_equal_totals_with_different_steps_are_no_dead_group():
    made = scored([lambda completions, **k: [[(1, 1.0), (2, 0.0)], [(1, 0.0), (2, 1.0)]]], ["ab", "cd"])
    assert made.std == 0.0 and made.dead is False
    assert scored([lambda completions, **k: [[(1, 1.0)], [(2, 1.0)]]], ["ab", "cd"]).dead is True


@pytest.mark.parametrize(("returned", "words"), [
    ([[(9, 1.0)], None], "ends at 9; expected a character position from 1 to 2"),
    ([[(0, 1.0)], None], "ends at 0"),
    ([[(1, math.nan)], None], "returned nan"),
    ([[(1, None)], None], "without a value"),
    ([[(1, 1.0)], 0.5], "gave steps for another completion"),
    ([[(1, 1.0)]], "returned 1 values for 2"),
])
def test_steps_that_cannot_be_used_are_refused_in_a_sentence(returned, words):
    with pytest.raises(RewardError, match=words):
        scored([lambda completions, **k: returned], ["ab", "cd"])


def test_the_builtin_steps_reward_can_judge_each_equation_where_it_ends():
    made = scored(["steps(each=True)"], ["7+5=12, 12-3=8.", "no working"])
    assert [c.steps.get("steps") for c in made.completions] == [[(6, 1.0), (14, 0.0)], None]
    assert [c.reward for c in made.completions] == [0.5, None]
    assert scored(["steps"], ["7+5=12, 12-3=8.", "no working"]).completions[1].reward == 0.0


# -- names, parameters, files


def test_parameters_are_read_without_evaluating_anything():
    assert parse_call("accuracy") == ("accuracy", {})
    assert parse_call(" accuracy(source='boxed', ignore_case=True) ") == ("accuracy", {"source": "boxed", "ignore_case": True})
    assert parse_call("length_target(target=-1.5)") == ("length_target", {"target": -1.5})


@pytest.mark.parametrize("text, said", [
    ("nope", "no built-in reward 'nope'"), ("accuracy('boxed')", "Cannot read"), ("accuracy(source=open('x'))", "Cannot read"),
    ("accuracy(**{})", "Cannot read"), ("accuracy(", "Cannot read"), ("os.system('x')", "Cannot read"), ("", "Cannot read"),
    ("accuracy(sauce=1)", "no parameter 'sauce'. Did you mean source? Its parameters: source"),
    ("accuracy(source='x')", "source is 'x': choose one of"),
    ("length_target(width=0)", "width is 0"), ("missing_file.py", "no reward file missing_file.py"),
])
def test_a_reward_that_cannot_be_made_is_refused_in_a_sentence(text, said):
    with pytest.raises(RewardNotFound, match=re.escape(said)):
        resolve([text])


def test_two_functions_of_one_name_keep_apart():
    rewards = resolve(["accuracy", "accuracy(source='number')"])
    assert [reward.name for reward in rewards] == ["accuracy", "accuracy_2"]
    assert rewards[1].parameters["source"] == "number" and rewards[1].doc.startswith("1 if the answer")


def test_a_file_runs_in_a_worker_with_text_or_messages(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("import os\nPID = os.getpid()\n"
                    "def as_text(completions, answer, log_metric, **kwargs):\n"
                    "    log_metric('pid', PID)\n"
                    "    return [float(a in c) for c, a in zip(completions, answer)]\n"
                    "def as_messages(completions, **kwargs):\n"
                    "    return [len(c[0]['content']) for c in completions]\n")
    import os

    rewards = resolve([f"{path}:as_text", f"{path}:as_messages"])
    made = group(["4!", "five"], answer="4")
    metrics = score(rewards, None, [made])
    assert [c.rewards for c in made.completions] == [{"as_text": 1.0, "as_messages": 2.0}, {"as_text": 0.0, "as_messages": 4.0}]
    assert metrics["pid"] != os.getpid()


def test_a_file_is_told_the_groups_if_it_asks(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def first_of_its_group(completions, group_ids, **kwargs):\n"
                    "    return [float(i == group_ids.index(g) and 'group_ids' not in kwargs) for i, g in enumerate(group_ids)]\n"
                    "def as_trl_has_it(completions, **kwargs):\n    return [float('group_ids' in kwargs) for c in completions]\n")
    groups = [group(["a", "b"], 0, "p"), group(["c", "d"], 1, "p")]
    score(resolve([f"{path}:first_of_its_group", f"{path}:as_trl_has_it"]), None, groups)
    assert [list(c.rewards.values()) for g in groups for c in g.completions] == [[1, 0], [0, 0], [1, 0], [0, 0]]


def test_an_error_in_a_file_names_its_line(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def bad(completions, **kwargs):\n    x = 1\n    return [c[0]['content'] / 2 for c in completions]\n")
    with pytest.raises(RewardError, match="line 3"):
        score(resolve([path]), None, [group(["a"])])


def test_rewards_import_no_torch():
    code = "import sys, lab.rewards, lab.tasks; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# -- built-ins


def test_accuracy_looks_only_where_it_is_told_to():
    texts = ["<answer>4</answer>", r"\boxed{4}", "It is 4", "<answer>5</answer> 4"]
    assert values("accuracy", texts, answer="4") == [1, 0, 0, 0]
    assert values("accuracy(source='boxed')", texts, answer="4") == [0, 1, 0, 0]
    assert values("accuracy(source='number')", texts, answer="4") == [1, 1, 1, 1]
    assert values("accuracy", ["<answer>4</answer>"], answer=None) == [None]
    assert values("accuracy(column='solution', tag='final')", ["<final>1/2</final>"], solution=0.5) == [1]


def test_accuracy_without_its_column_says_which_there_are():
    with pytest.raises(RewardError, match="no column 'answer' .they have level"):
        scored(["accuracy"], ["4"], level=1)


@pytest.mark.parametrize("text, value", [
    ("<think>a</think><answer>b</answer>", 1), ("  <think>a</think>\n\n<answer>b</answer>\n", 1),
    ("<think>a\nb</think><answer>3 < 4</answer>", 1), ("<think>a</think>so<answer>b</answer>", 0),
    ("<think></think><answer>b</answer>", 0), ("<think>a</think><answer> </answer>", 0), ("<answer>b</answer>", 0),
    ("<answer>b</answer><think>a</think>", 0), ("<think>a</think><answer>b</answer>!", 0), ("x<think>a</think><answer>b</answer>", 0),
    ("<think>a</think><think>a</think><answer>b</answer>", 0), ("<think>a<answer>b</answer></think>", 0),
    ("<think>a</think><answer>b", 0), ("", 0), ("<think>a</think><answer>b</answer><answer>c</answer>", 0),
])
def test_format_wants_both_parts_once_in_order_and_nothing_else(text, value):
    assert values("format", [text]) == [value]


def test_format_tags_can_be_renamed_or_thinking_left_out():
    assert values("format(think='reasoning', answer='final')", ["<reasoning>a</reasoning><final>b</final>"]) == [1]
    assert values("format(think=None)", ["<answer>b</answer>", "<think>a</think><answer>b</answer>"]) == [1, 0]


def test_length_target_is_smooth_and_highest_at_the_target():
    # one width away: exp(−½)
    assert values("length_target(target=3, width=2, unit='words')", ["a b c", "a", "a b c d e"]) == pytest.approx(
        [1, math.exp(-0.5), math.exp(-0.5)])
    assert values("length_target(target=2, width=1, unit='characters')", ["ab"]) == [1]
    assert values("length_target(target=2, width=1)", ["a"]) == [1]  # group() gives one token per word and a stop token


def test_brevity_and_word_penalty_count_words():
    assert values("brevity", ["Apple", "An apple", ""]) == [1, 0.5, 0]
    assert values("word_penalty", ["An apple", ""]) == pytest.approx([-0.04, 0])


def test_every_docstring_example_is_true():
    import doctest

    for factory in BUILTINS.values():
        if factory.__name__ == "code" and sys.platform != "linux":
            continue  # programs of a model run only where the kernel gives a lock
        runner = doctest.DocTestRunner()
        for example in doctest.DocTestFinder().find(factory, globs=vars(sys.modules[factory.__module__]) | BUILTINS):
            runner.run(example)
        assert runner.summarize().failed == 0 and runner.tries > 0, factory.__name__


def test_every_builtin_reward_has_a_first_line_and_defaults():
    for name, factory in BUILTINS.items():
        assert factory.__doc__ and len(factory.__doc__.split("\n")[0]) <= 120, name
        assert "\n    Source: " in factory.__doc__ and ">>> " in factory.__doc__, name
        assert factory.__name__ == name
