"""The embedded model's folder, its problems, its corpus, and its gates on the committed weights."""

import functools
import itertools
import json
import random
import re
import stat
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import TemplateError
from transformers import AutoModelForCausalLM, AutoTokenizer

from lab.models import pretrain_tiny, tiny_corpus, tiny_gates
from lab.models.tiny_parts import SPECIAL_TOKENS, TAGS, build_model, build_tokenizer
from lab.tasks import arithmetic

FOLDER = Path(__file__).parents[1] / "assets" / "models" / "tiny"
TEMPLATES = (r"What is (.+)\?", r"(.+) = \?", r"Compute (.+)\.", r"Calculate (.+)")


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDER, local_files_only=True)


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32, local_files_only=True)


@pytest.fixture(scope="module")
def report(model, tokenizer):
    return tiny_gates.measure(model, tokenizer, seed=7, count=64)


# Tokenizer and template


@given(st.text())
@settings(max_examples=300, deadline=None)
def test_any_text_survives_the_round_trip(text):
    tokenizer = _built()
    assert tokenizer.decode(tokenizer(text)["input_ids"], clean_up_tokenization_spaces=False) == text


@pytest.mark.parametrize("text", ["a , b  \t é", "日本語 🎉🇲🇾", "\x00\x7f", "<thin", "don 't ."])
def test_awkward_texts_survive_in_the_committed_folder(tokenizer, text):
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_a_tag_is_one_token_and_stays_visible_when_special_tokens_are_skipped(tokenizer):
    text = "<think>1+1=2</think><answer>2</answer>"
    ids = tokenizer(text + "<|end|>")["input_ids"]
    # 4 tags + "1+1=2" (5 bytes) + "2" (1 byte) + the end token
    assert len(ids) == 11
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert [tokenizer.convert_tokens_to_ids(tag) for tag in TAGS] == [7, 8, 9, 10, 11, 12]


def test_special_tokens_have_their_fixed_ids(tokenizer):
    assert len(tokenizer) == 320
    assert tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == [0, 1, 2, 3, 4, 5, 6]
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id) == (0, 1, 2)
    assert tokenizer.padding_side == "left"


def test_the_chat_template_renders_exactly_this(tokenizer):
    messages = [{"role": "system", "content": "Think, then answer."}, {"role": "user", "content": "1 + 1 = ?"}]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert prompt == "<|system|>Think, then answer.<|end|><|user|>1 + 1 = ?<|end|><|assistant|>"
    answered = [*messages, {"role": "assistant", "content": "2"}]
    assert tokenizer.apply_chat_template(answered, tokenize=False) == prompt + "2<|end|>"


def test_the_assistant_mask_covers_the_reply_and_its_end(tokenizer):
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "yes"}]
    encoded = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
    # <|user|> H i <|end|> <|assistant|> are not the reply; y e s <|end|> are.
    assert encoded["assistant_masks"] == [0, 0, 0, 0, 0, 1, 1, 1, 1]


def test_an_unknown_role_is_refused(tokenizer):
    with pytest.raises(TemplateError, match="not tool"):
        tokenizer.apply_chat_template([{"role": "tool", "content": "x"}], tokenize=False)


# The committed folder


def test_the_folder_is_small_readable_and_free_of_pickle():
    files = [path for path in FOLDER.iterdir() if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 5_000_000
    assert {path.suffix for path in files} <= {".json", ".jinja", ".safetensors", ".md"}
    assert all(path.stat().st_mode & stat.S_IROTH for path in files)


def test_the_folder_names_a_tokenizer_class_older_readers_know():
    config = json.loads((FOLDER / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast" and "backend" not in config


def test_the_weights_are_bf16_and_as_many_as_the_card_says(model):
    stored = AutoModelForCausalLM.from_pretrained(FOLDER, dtype="auto", local_files_only=True)
    assert stored.dtype == torch.bfloat16
    # embedding 320·192 + 4 layers of (4·192² attention + 3·192·512 MLP + 2·192 norms) + the last norm 192
    assert sum(p.numel() for p in model.parameters()) == 320 * 192 + 4 * (4 * 192**2 + 3 * 192 * 512 + 2 * 192) + 192
    assert "1,832,640 parameters" in _card()


def test_the_committed_tokenizer_is_the_one_the_script_builds(tokenizer):
    assert tokenizer.get_vocab() == build_tokenizer().get_vocab()
    assert tokenizer.chat_template == build_tokenizer().chat_template


def test_the_card_has_a_measured_row_for_every_task():
    for task in tiny_gates.MEASURED_TASKS:
        assert re.search(rf"^\| {task} \| `[^`]+`( \| [01]\.\d\d){{5}} \|$", _card(), re.MULTILINE), task
    for words in ("Apache-2.0", "CPU minutes", "`Think, then answer.`", "--seed", "cannot do"):
        assert words in _card()


# Gates


def test_made_to_think_the_model_knows_its_sums(report):
    # The gates are .95 / .85 / .9 on 256 problems; 64 problems may fall a little lower by chance.
    assert {task: s.skill for task, s in report.scores.items() if s.skill < tiny_gates.SKILL[task][0] - 0.05} == {}


def test_left_alone_it_is_seldom_right_and_often_messy(report):
    for task, s in report.scores.items():
        if task in tiny_gates.SAMPLED_ACCURACY:
            assert 0 < s.sampled_accuracy <= 0.42, task
            assert 0.25 <= s.sampled_format <= 0.8, task
            assert s.greedy_accuracy <= 0.35, task


def test_a_report_outside_the_gates_is_refused_by_task_and_measure(report):
    good = tiny_gates.TaskScores(0.99, 0.2, 0.5, 0.1, 1.0)
    lazy = tiny_gates.TaskScores(0.5, 0.2, 0.7, 0.1, 1.0)
    assert tiny_gates.failed_gates(tiny_gates.Report({"add2": good}, 64, 1)) == []
    failures = tiny_gates.failed_gates(tiny_gates.Report({"add2": good, "chain": lazy}, 64, 1))
    assert failures == [
        "chain: skill is 0.500, outside 0.85 to 1",
        "chain: sampled_format is 0.700, outside 0.35 to 0.65",
    ]


def test_weights_that_miss_a_gate_are_not_written(tmp_path, model):
    lazy = tiny_gates.Report({"add2": tiny_gates.TaskScores(0.5, 0.2, 0.5, 0.1, 1.0)}, 64, 1)
    with pytest.raises(SystemExit, match="add2: skill is 0.500"):
        pretrain_tiny.write_if_fit(tmp_path / "tiny", model, lazy)
    assert not (tmp_path / "tiny").exists()


def test_a_tiny_bit_of_training_lowers_the_loss(tokenizer):
    torch.manual_seed(0)
    fresh, stage = build_model(), pretrain_tiny.Stage("TEST", 8, mixed=False, matrix_lr=3e-3, other_lr=2e-3, warmup=2)
    input_ids, labels = next(pretrain_tiny._batches(tokenizer, seed=3, mixed=False, batch_size=8))
    before = pretrain_tiny.completion_loss(fresh, input_ids, labels).item()
    pretrain_tiny.train(fresh, tokenizer, stage, seed=3, batch_size=8)
    # Untrained, every one of 320 tokens is about equally likely: ln 320 = 5.77 nats.
    assert before == pytest.approx(5.77, abs=0.2)
    assert pretrain_tiny.completion_loss(fresh, input_ids, labels).item() < before - 0.5


# Training code


def test_only_completion_tokens_are_learned():
    tokenizer = _built()
    example = tiny_corpus.Example("Be brief.", "Hi", "yes")
    input_ids, labels = pretrain_tiny._pad([pretrain_tiny._encode(tokenizer, example)])
    learned = labels[0] != pretrain_tiny.IGNORED
    assert tokenizer.decode(labels[0][learned]) == "yes<|end|>"
    assert tokenizer.decode(input_ids[0]) == "<|system|>Be brief.<|end|><|user|>Hi<|end|><|assistant|>yes<|end|>"


def test_the_corpus_is_seeded():
    first, again, other = (list(itertools.islice(tiny_corpus.examples(seed, mixed=True), 50)) for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize("shares", [tiny_corpus.CLEAN, tiny_corpus.MIX, tiny_corpus.MIX_HARD])
def test_the_manners_are_a_whole(shares):
    assert sum(shares.values()) == pytest.approx(1.0)


def test_a_wrong_answer_is_never_right():
    rng = random.Random(0)
    for task in arithmetic.TASKS:
        for _ in range(300):
            problem = arithmetic.draw(task, rng)
            assert tiny_corpus._wrong(problem, rng) != problem.answer


def test_the_corpus_asks_no_held_out_question():
    for example in itertools.islice(tiny_corpus.examples(5, mixed=False), 3000):
        if example.prompt not in tiny_corpus.SMALL_TALK:
            assert not arithmetic.is_held_out(_expression(example.prompt)), example.prompt


# Problems


@pytest.mark.parametrize("task", ["add2", "sub2", "add3", "chain", "chain_any"])
def test_sums_have_the_answer_that_evaluating_them_gives(task):
    for row in arithmetic.rows(task, 400, seed=3):
        assert row["answer"] == str(eval(_expression(row["prompt"]), {"__builtins__": {}})), row
        assert row["task"] == task


@pytest.mark.parametrize("task", ["add3", "chain", "chain_any"])
def test_every_step_of_a_running_total_is_true_and_the_last_is_the_answer(task):
    rng = random.Random(4)
    for _ in range(300):
        problem = arithmetic.draw(task, rng)
        for step in problem.steps.split(", "):
            left, right = step.split("=")
            assert eval(left, {"__builtins__": {}}) == int(right)
        assert problem.steps.endswith(f"={problem.answer}")


@pytest.mark.parametrize(
    ("a", "b", "steps"),
    [(69, 13, "9+3=12, 6+1+1=8"), (6, 4, "6+4=10"), (42, 5, "2+5=7, 4"), (95, 5, "5+5=10, 9+1=10"), (50, 98, "0+8=8, 5+9=14")],
)
def test_column_addition_is_written_from_the_right_with_its_carry(a, b, steps):
    assert arithmetic._column_addition(a, b) == steps


@pytest.mark.parametrize(
    ("a", "b", "steps"),
    [(72, 18, "12-8=4, 6-1=5"), (9, 4, "9-4=5"), (42, 5, "12-5=7, 3"), (48, 5, "8-5=3, 4"), (77, 77, "7-7=0, 7-7=0")],
)
def test_column_subtraction_is_written_from_the_right_with_its_borrow(a, b, steps):
    assert arithmetic._column_subtraction(a, b) == steps


def test_a_chain_has_four_one_digit_operands_and_never_goes_below_zero():
    for row in arithmetic.rows("chain", 300, seed=5):
        expression = _expression(row["prompt"])
        assert re.fullmatch(r"[1-9]( [+-] [1-9]){3}", expression)
        pieces = expression.split(" ")
        totals = [eval(" ".join(pieces[: 2 * n + 1]), {"__builtins__": {}}) for n in range(4)]
        assert min(totals) >= 0


def test_parity_and_comparison_answers_are_true():
    for row in arithmetic.rows(("parity", "cmp"), 400, seed=6):
        numbers = [int(n) for n in re.findall(r"\d+", row["prompt"])]
        expected = ("odd" if numbers[0] % 2 else "even") if row["task"] == "parity" else "yes" if numbers[0] > numbers[1] else "no"
        assert row["answer"] == expected, row


def test_held_out_prompts_never_appear_among_training_prompts():
    for task in arithmetic.TASKS:
        training = {row["prompt"] for row in arithmetic.rows(task, 2000, seed=1)}
        held_out = {row["prompt"] for row in arithmetic.rows(task, 500, seed=1, held_out=True)}
        assert training and held_out and not training & held_out, task


def test_the_split_is_a_tenth_and_the_same_everywhere():
    share = sum(arithmetic.is_held_out(f"{a} + {b}") for a in range(1, 100) for b in range(1, 100)) / 99**2
    assert 0.08 < share < 0.12
    # sha256("69 + 13") starts with byte 0xa0 = 160, a multiple of ten; sha256("1 + 1") with 0x72 = 114, which is none.
    assert arithmetic.is_held_out("69 + 13") and not arithmetic.is_held_out("1 + 1")


def test_rows_are_seeded_and_tasks_take_turns():
    mixed = arithmetic.rows(("add2", "sub2"), 6, seed=9)
    assert mixed == arithmetic.rows(("add2", "sub2"), 6, seed=9) != arithmetic.rows(("add2", "sub2"), 6, seed=10)
    assert [row["task"] for row in mixed] == ["add2", "sub2"] * 3


def test_an_unknown_task_is_named_in_the_error():
    with pytest.raises(ValueError, match="no arithmetic task 'mul2'"):
        arithmetic.rows("mul2", 1, seed=0)


@functools.cache
def _built():
    return build_tokenizer()


def _card() -> str:
    return (FOLDER / "README.md").read_text(encoding="utf-8")


def _expression(prompt: str) -> str:
    patterns = (r"Is (\d+) even or odd\?", r"Is (\d+ > \d+)\?", *TEMPLATES)
    return next(found[1] for pattern in patterns if (found := re.fullmatch(pattern, prompt)))
