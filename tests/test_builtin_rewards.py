"""Built-in rewards on tables of right and wrong cases written by hand, and beside TRL's own."""

from __future__ import annotations

import math
import time

import pytest

from lab.records import Completion, Group
from lab.rewards import RewardError, RewardNotFound, resolve, score
from lab.rewards.extract import extract, last_choice
from lab.rewards.locked import LockedCheck
from lab.rewards.steps import equations


def values(reward, texts, ids=None, prompts=None, **columns):
    """What one reward gives for each text, through the whole scoring path."""
    prompts = prompts or ["p"] * len(texts)
    groups = []
    for row, (text, prompt) in enumerate(zip(texts, prompts, strict=True)):
        if not groups or groups[-1].prompt != prompt:
            groups.append(Group(len(groups), prompt, [1], {"prompt": prompt, **columns}, []))
        groups[-1].completions.append(Completion(row, text, ids[row] if ids else [1] * 5, True))
    (made,) = resolve([reward])
    score([made], None, groups)
    return [completion.rewards[made.name] for group in groups for completion in group.completions]


# -- mathematics: expected answer, given answer, same?

MATHS = [
    ("4", "4", 1), ("4", "4.0", 1), ("4", "5", 0), ("1/2", "0.5", 1), ("1/2", r"\frac{1}{2}", 1), ("1/2", "0.51", 0),
    ("3", "x = 3", 1), ("3", "x = 4", 0), (r"\sqrt{8}", r"2\sqrt{2}", 1), (r"\sqrt{8}", r"3\sqrt{2}", 0),
    (r"\{1, 2\}", r"\{2, 1\}", 1), (r"\{1, 2\}", r"\{1, 3\}", 0), ("(1, 2)", "(1,2)", 1), ("(1, 2)", "(2,1)", 0),
    (r"50\%", r"\frac{1}{2}", 1), (r"\frac{3}{4}", "75/100", 1), ("2x + 2", "2(x+1)", 1), ("2x + 2", "2(x+2)", 0),
    ("1000", "1,000", 1), ("-3", "-3", 1), ("-3", "3", 0), (r"\pi", "3.14", 0), (r"2\pi", r"\pi \cdot 2", 1),
    ("[0, 1)", "[0,1)", 1), ("[0, 1)", "[0,1]", 0), ("x^2", "x^{2}", 1), ("x^2", "x^3", 0), ("10", "9 + 1", 1),
    (r"\frac{\pi}{2}", r"0.5\pi", 1), ("6", r"3!", 1), ("even", "even", 1), ("even", "odd", 0), ("B", "B", 1), ("B", "C", 0),
]


@pytest.fixture(scope="module")
def mathematics():
    pytest.importorskip("math_verify", reason="math-verify is an extra")
    boxed = [rf"So it is \boxed{{{given}}}." for _, given, _ in MATHS]
    groups = [Group(i, str(i), [1], {"prompt": str(i), "answer": right}, [Completion(0, text, [1], True)])
              for i, ((right, _, _), text) in enumerate(zip(MATHS, boxed, strict=True))]
    score(resolve(["accuracy(source='boxed', math=True)"]), None, groups)
    return [group.completions[0].reward for group in groups]


@pytest.mark.parametrize("row", range(len(MATHS)), ids=lambda row: f"{MATHS[row][0]} ~ {MATHS[row][1]}")
def test_mathematics_is_compared_by_meaning(mathematics, row):
    assert mathematics[row] == MATHS[row][2]


def test_hostile_mathematics_gets_nothing_and_harms_nobody(tmp_path):
    pytest.importorskip("math_verify", reason="math-verify is an extra")
    code = f"__import__('os').system('touch {tmp_path / 'x'}')"
    hostile = [r"\boxed{9^{9^{9^9}}}", r"\boxed{" + code + "}", r"\boxed{" + "(" * 150 + "}",
               r"\boxed{x = 4}", r"\boxed{" + "9" * 300 + "}"]
    assert values("accuracy(source='boxed', math=True)", hostile, answer="4") == [0, 0, 0, 1, 0]
    assert not (tmp_path / "x").exists()


# -- where answers are found


@pytest.mark.parametrize("text, letter", [
    ("B", "B"), (" b ", "B"), ("(C)", "C"), ("The answer is (A).", "A"), ("Answer: D", "D"), ("I pick B.", "B"), ("B) because", "B"),
    ("**C**", "C"), ("**C.** Paris", "C"), ("A or B or C", "C"), ("(A) is wrong, (D) is right", "D"), ("Jawapan: B", "B"),
    ("Jawapan ialah C", "C"), ("A dog barks", None), ("I like it", None), ("", None), ("none of them", None), ("Option E", "E"),
    ("ABBA", None), ("the answer is beta", None),
])
def test_the_last_choice_is_found(text, letter):
    assert last_choice(text) == letter


@pytest.mark.parametrize("source, text, found", [
    ("hash", "work\n#### 42", "42"), ("hash", "#### 1\n#### 2\nmore", "2"), ("hash", "42", None), ("hash", "####", None),
    ("any", r"<answer>1</answer> \boxed{2} #### 3", "2"), ("any", "<answer>1</answer> 3", "1"), ("any", "#### 3 apples\n4", "3 apples"),
    ("any", "it is 4", "4"), ("any", "nothing", None),
])
def test_other_places_of_answers(source, text, found):
    assert extract(text, source) == found


def test_multiple_choice_accuracy():
    assert values("accuracy(source='choice')", ["(B)", "Answer: b", "C", "A or B"], answer="B") == [1, 0, 0, 1]


# -- language: text, target, expected share (or None); formulas, code and tags don't count

LANGUAGE = [
    ("The children walk to school every morning.", "en", 1), ("Kanak-kanak berjalan ke sekolah setiap pagi.", "en", 0),
    ("Kanak-kanak berjalan ke sekolah setiap pagi.", "ms", 1), ("The children walk to school every morning.", "ms", 0),
    ("Saya tidak tahu jawapannya, tetapi saya akan cuba.", "ms", 1), ("Anak-anak pergi ke sekolah naik sepeda setiap hari.", "ms", 1),
    ("Anak-anak pergi ke sekolah naik sepeda setiap hari.", "id", 1), ("Dia mahu membeli kereta baharu.", "id", 1),
    ("Pada hari Isnin kami ada mesyuarat di pejabat.", "ms", 1), ("Hari ini hujan lebat di Kuala Lumpur.", "ms", 1),
    ("We have a meeting at the office on Monday.", "ms", 0), ("今天天气很好，我们去公园。", "zh", 1),
    ("今天天气很好，我们去公园。", "en", 0),
    ("The answer is four.", "zh", 0), ("答案是 $x = 4$。", "zh", 1), ("The answer is $\\frac{jawapan}{dua}$.", "en", 1),
    ("<think>First we add the two numbers together.</think><answer>7</answer>", "en", 1),
    ("<think>Mula-mula kita tambah kedua-dua nombor itu.</think><answer>7</answer>", "ms", 1),
    ("```python\nfor item in list: print(item)\n```\nKod ini mencetak setiap barang.", "ms", 1),
    ("Lihat https://example.com/the-english-page untuk maklumat lanjut.", "ms", 1), ("", "ms", None), ("42", "ms", None),
    ("$a + b = c$", "en", None), ("3 + 4 = 7", "en", None), ("\\boxed{12}", "en", None), ("வணக்கம் உலகம்", "ta", 1),
    ("வணக்கம் உலகம்", "ms", 0), ("สวัสดีชาวโลก", "th", 1), ("こんにちは世界", "ja", 1), ("こんにちは世界", "zh", 0),
    ("안녕하세요 여러분", "ko", 1), ("Привет, мир", "ru", 1), ("THE ANSWER IS WRITTEN IN CAPITAL LETTERS.", "en", 1),
    ("Terima kasih banyak-banyak atas bantuan anda.", "ms", 1), ("Thank you very much for your help.", "en", 1),
]


@pytest.mark.parametrize("text, target, share", LANGUAGE)
def test_language_of_a_text(text, target, share):
    pytest.importorskip("py3langid", reason="py3langid is an extra")
    assert values(f"language(target={target!r})", [text]) == [share]


LINGUA = [("Kami pergi ke kantor naik mobil karena hujan deras, lalu rapat dengan karyawan.", "id"),
          ("Kami pergi ke pejabat menaiki kereta kerana hujan lebat, lalu bermesyuarat dengan pekerja.", "ms"),
          ("Anak-anak pergi ke sekolah naik sepeda setiap hari.", "id"), ("Kanak-kanak pergi ke sekolah dengan basikal setiap hari.", "ms"),
          ("The children walk to school every morning.", "en"), ("Saya mahu membeli kereta baharu pada hari Isnin.", "ms")]


@pytest.mark.parametrize("text, right", LINGUA)
def test_lingua_keeps_malay_indonesian_and_english_apart(text, right):
    pytest.importorskip("lingua", reason="lingua is an extra")
    shares = {code: values(f"language(target={code!r}, among=('ms', 'id', 'en'), strict=True, detector='lingua')", [text])[0]
              for code in ("ms", "id", "en")}
    assert shares == {code: float(code == right) for code in ("ms", "id", "en")}


def test_lingua_refuses_what_it_does_not_know_and_counts_nothing_in_a_formula():
    pytest.importorskip("lingua", reason="lingua is an extra")
    assert values("language(target='ms', detector='lingua')", ["$a + b$", "答案是四。"]) == [None, 0]
    with pytest.raises(RewardNotFound, match="Unknown language code 'klingon'"):
        resolve("language(target='klingon', detector='lingua')")


def test_mixed_text_gets_its_share():
    pytest.importorskip("py3langid", reason="py3langid is an extra")
    malay, english = "Kanak-kanak berjalan ke sekolah setiap pagi.", "The children walk to school every morning."
    in_malay, in_english = (sum(c.isalpha() for c in text) for text in (malay, english))
    expected = in_malay / (in_malay + in_english)
    assert values("language(target='ms')", [f"{malay} {english}"]) == [pytest.approx(expected)]
    # 8 Latin letters beside 4 Chinese ones
    assert values("language(target='zh', among=('en',))", ["Good day. 今天很好"]) == [pytest.approx(4 / 11)]


def test_strict_keeps_malay_and_indonesian_apart():
    pytest.importorskip("py3langid", reason="py3langid is an extra")
    indonesian = "Kami pergi ke kantor naik mobil karena hujan deras, lalu rapat dengan karyawan perusahaan."
    assert values("language(target='ms', among=('ms', 'id', 'en'), strict=True)", [indonesian]) == [0]
    assert values("language(target='id', among=('ms', 'id', 'en'), strict=True)", [indonesian]) == [1]


def test_an_unknown_language_is_refused():
    pytest.importorskip("py3langid", reason="py3langid is an extra")
    with pytest.raises(RewardNotFound, match="Unknown language"):
        resolve("language(target='klingon')")


# -- the form of a text


def test_regex_and_a_pattern_that_never_ends():
    assert values(r"regex(pattern='^\\d+$', whole=True)", ["42", " 42\n", "42a", ""]) == [1, 1, 0, 0]
    assert values("regex(pattern='YES', ignore_case=True)", ["oh yes", "no"]) == [1, 0]
    assert values("regex(pattern='(a+)+b')", ["a" * 40, "ab"]) == [0, 1]


@pytest.mark.parametrize("reward, text, value", [
    ("keywords(words=('because', 'so'))", "Because it rains, so what", 1), ("keywords(words=('because', 'so'))", "also becauses", 0),
    ("keywords(words=('a', 'b', 'c'), mode='any')", "b", 1), ("keywords(words=('a', 'b', 'c'), mode='all')", "a b", 0),
    ("keywords(words='one')", "One.", 1), ("keywords(words='c++')", "I write C++ daily", 1),
    ("keywords(words=(), forbidden='sorry')", "Sorry, no", 0), ("keywords(words=(), forbidden='sorry')", "Fine", 1),
    ("keywords(words='yes', forbidden='no')", "yes and no", 0),
])
def test_keywords(reward, text, value):
    assert values(reward, [text]) == [value]


SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
          "required": ["name"], "additionalProperties": False}


@pytest.mark.parametrize("text, value", [
    ('{"name": "Ali"}', 1), ('{"name": "Ali", "age": 3}', 1), ('```json\n{"name": "Ali"}\n```', 1), ('```\n{"name": "Ali"}\n```', 1),
    ('{"name": "Ali", "age": -1}', 0.2), ('{"age": 3}', 0.2), ('{"name": 1}', 0.2), ('{"name": "Ali", "x": 1}', 0.2), ("[]",
    0.2), ("7", 0.2),
    ('{"name": "Ali"', 0), ("{'name': 'Ali'}", 0), ('Here: {"name": "Ali"}', 0), ("", 0), ('{"name": NaN}', 0), ("[" * 5000, 0),
])
def test_json_schema(text, value):
    pytest.importorskip("jsonschema", reason="jsonschema is an extra")
    assert values(f"json_schema(schema={SCHEMA})", [text]) == [value]


def test_json_inside_a_tag_and_without_a_schema():
    assert values("json_schema(tag='answer')", ['so <answer>{"a": 1}</answer>', '{"a": 1}', "<answer>5</answer>"]) == [1, 0, 0.2]


def test_a_schema_never_fetches_another_document():
    pytest.importorskip("jsonschema", reason="jsonschema is an extra")
    with pytest.raises(RewardError):
        values("json_schema(schema={'$ref': 'http://127.0.0.1:9/schema.json'})", ['{"a": 1}'])


def test_rank_keeps_two_groups_of_one_prompt_apart():
    """Groups are told by their ids: under brevity 1, 2 words and 3, 4 words, one prompt, neighbours."""
    groups = [Group(0, "p", [1], {"prompt": "p"}, []), Group(1, "p", [1], {"prompt": "p"}, [])]
    for group, texts in zip(groups, (["a", "a b"], ["a b c", "a b c d"]), strict=True):
        group.completions += [Completion(i, text, [1], True) for i, text in enumerate(texts)]
    score(resolve("rank(of='brevity')"), None, groups)
    assert [[c.reward for c in group.completions] for group in groups] == [[1, 0], [1, 0]]
    # and a group need not stand together
    assert resolve("rank(of='brevity')")[0].function(prompts=["p"] * 4, completions=["a", "a b c", "a b", "a b c d"],
                                                     group_ids=[7, 3, 7, 3]) == [1, 1, 0, 0]


def test_a_function_is_told_the_groups_only_if_it_asks():
    told = []

    def asks(completions, group_ids, **kwargs):
        told.append((group_ids, "ratings" in kwargs))
        return [0.0] * len(completions)

    def as_trl_has_it(completions, **kwargs):
        told.append(sorted(kwargs))
        return [0.0] * len(completions)

    values(asks, ["a", "b", "c"], prompts=["p", "p", "q"])
    values(as_trl_has_it, ["a"], answer="4")
    assert told == [([0, 0, 1], False), ["answer", "completion_ids", "log_extra", "log_metric", "prompts", "trainer_state"]]


def test_rank_counts_only_the_order_within_each_group():
    # group p: 1, 3 and 2 words under brevity; group q: a tie of two shares (0 + 1)/2, and the longest is last
    texts, prompts = ["a", "a b c", "a b", "x y", "u v", "a b c d e f"], ["p"] * 3 + ["q"] * 3
    assert values("rank(of='brevity')", texts, prompts=prompts) == [1, 0, 0.5, 0.75, 0.75, 0]
    assert values("rank(of='accuracy')", ["1", "2"], answer=None) == [None, None]


# -- working

STEPS = [
    ("7+5=12, 12-3=9", 1), ("7+5=12, 12-3=8", 0.5), ("7+5=13", 0), ("no equation", 0), ("", 0), ("12=12", 0), ("2*3=6", 1),
    ("2 × 3 = 6", 1),
    ("8/4=2", 1), ("1/2=0.5", 1), ("8÷0=1", 0), ("(1+2)*3=9", 1), ("1+2*3=9", 0), ("9+3=12, 6+1+1=8", 1), ("1+1=2, 1+1=2, 2+2=5", 0.5),
    ("-3+5=2", 1), ("3−5=−2", 1), ("1.5+1.5=3", 1), ("007+1=8", 1), ("2**9=512", 0), ("a+1=2", 0), ("x = 4", 0), ("12-8=4\n6-1=5", 1),
    ("<think>7+5=12</think><answer>12</answer>", 1), ("first 7+5=12 and then 12+1=14", 0.5), ("1+1=2.", 1), ("1+1=2+0=2", 1),
    ("5-3=2,2+2=4", 1),
    ("1+1 =2", 1), ("99999999999*99999999999=9999999999800000000001", 1), ("1" + "+1" * 60 + "=61", 0),
]


@pytest.mark.parametrize("text, value", STEPS)
def test_each_equation_is_checked(text, value):
    assert values("steps", [text]) == [value]


def test_steps_can_be_asked_to_go_on_from_each_other_and_to_arrive():
    assert values("steps(chained=True)", ["7+5=12, 12-3=9", "7+5=12, 4+5=9", "2+2=4"]) == [1, 0.5, 1]
    assert values("steps(column='answer')", ["7+5=12, 12-3=9", "7+5=12"], answer="9") == [1, 0.5]
    assert len(equations("1+1=2 " * 50)) == 1


# -- beside TRL


@pytest.fixture(scope="module")
def trl_rewards():
    return pytest.importorskip("trl.rewards", reason="TRL is only needed to compare with it")


IDS = [[1, 2, 3, 4], [5, 5, 5, 5, 5], [7], [], list(range(80)), list(range(90)), list(range(100)), list(range(101)), [1, 2] * 30]


def test_overlong_and_repetition_agree_with_trl(trl_rewards):
    texts = [""] * len(IDS)
    theirs = trl_rewards.get_soft_overlong_punishment(max_completion_len=100, soft_punish_cache=20)
    assert values("soft_overlong(max_length=100, cache=20)", texts, IDS) == pytest.approx(theirs(IDS))
    theirs = trl_rewards.get_repetition_penalty_reward(ngram_size=2, max_penalty=-0.5)
    assert values("repetition(ngram=2, max_penalty=-0.5)", texts, IDS) == pytest.approx(theirs(IDS))


def test_cosine_agrees_with_trl(trl_rewards):
    texts = [r"\boxed{4}", r"\boxed{5}"] * 4 + [r"\boxed{4}"]
    theirs = trl_rewards.get_cosine_scaled_reward(max_len=100)([[{"content": t}] for t in texts], ["4"] * 9, IDS)
    assert values("cosine(max_length=100, source='boxed')", texts, IDS, answer="4") == pytest.approx(theirs)


def test_trls_own_rewards_run_unchanged(trl_rewards):
    texts = ["<think>\nhm\n</think>\n\\boxed{4}", r"\boxed{5}"]
    ids = [[1] * 90, [5] * 5]
    assert values(trl_rewards.think_format_reward, texts) == [1, 0]
    assert values(trl_rewards.accuracy_reward, texts, solution="$4$") == [1, 0]
    assert values(trl_rewards.reasoning_accuracy_reward, texts, solution="$4$") == [1, 0]
    assert values(trl_rewards.get_soft_overlong_punishment(100, 20), texts, ids) == [-0.5, 0]
    assert values(trl_rewards.get_repetition_penalty_reward(2), texts, ids) == pytest.approx([-(1 - 1 / 89), -0.75])
    # half of the length: right .75, wrong −.75, as in TRL's own example
    assert values(trl_rewards.get_cosine_scaled_reward(max_len=10), texts, [[1] * 5] * 2, solution="$4$") == pytest.approx([0.75, -0.75])


# -- the locked check


def test_a_row_that_hangs_gets_nothing_and_the_others_their_due(tmp_path):
    check = LockedCheck("check_regex.py")
    started = time.process_time()
    verdicts = check(["ab", "a" * 40, "xx"], pattern=["(a+)+b"] * 3, whole=[False] * 3, ignore_case=[False] * 3)
    assert verdicts == [1, 0, 0] and time.process_time() - started < 5
    assert check([], pattern=[], whole=[], ignore_case=[]) == []


def test_what_many_hanging_rows_cost_is_capped_and_the_rows_left_out_are_named(monkeypatch):
    monkeypatch.setattr("lab.rewards.locked.MOST_HANGS", 2)  # each of them costs more than a second
    hostile = "a" * 40
    texts = ["ab", *[hostile] * 8, "ab", hostile, "xab"]
    made = Group(0, "p", [1], {}, [Completion(i, text, [1], True) for i, text in enumerate(texts)])
    score(resolve("regex(pattern='(a+)+b')"), None, [made])
    assert [c.reward for c in made.completions] == [1, 0, 0, *[None] * 9]
    said = ("The check hung on 2 completions (rows 1–2), and no more than that are waited for in one call: rows 3–11 were not checked and "
            "have no score.")
    assert [c.extra["not checked"] for c in made.completions] == [None] * 3 + [said] * 9


def test_a_missing_package_is_named():
    with pytest.raises(ValueError, match="pip install no-such"):
        LockedCheck("check_regex.py", preload=("no_such_module",), needs="no-such")


@pytest.mark.parametrize("text, said", [
    ("regex(pattern='(')", "not a regular expression"), ("regex", "pattern"), ("repetition(ngram=0)", "ngram is 0"),
    ("repetition(max_penalty=1)", "a penalty is 0 or negative"), ("soft_overlong(cache=999)", "between 0 and max_length"),
    ("cosine(max_length=0)", "max_length is 0"), ("keywords(words=())", "words is empty"), ("keywords(words='a', mode='x')", "mode is 'x'"),
    ("rank(of='nope')", "no built-in reward 'nope'"),
    ("language(detector='guess')", "detector is 'guess'"),
])
def test_parameters_that_cannot_work_are_refused(text, said):
    with pytest.raises(RewardNotFound, match=said):
        resolve(text)


def test_cosine_by_hand():
    # right, a quarter of the way: .5 + .5·(1 + cos(π/4))/2 = .5 + .25·1.70711 = .92678
    assert values("cosine(max_length=100)", ["<answer>1</answer>"], [[0] * 25],
        answer="1") == [pytest.approx(0.5 + 0.25 * (1 + math.sqrt(0.5)))]
