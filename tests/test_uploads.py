"""Files of strangers: one clear sentence for each kind of bad one, nothing half-loaded, and what is good is read as it is.

Each is read the way the page reads it: in a process of its own, behind the lock where the machine has one.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import subprocess
import sys
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.tasks import TaskError
from lab.tasks.mapping import Mapping, apply, guess
from lab.tasks.read_apart import read_upload
from lab.tasks.tables import UPLOAD, Limits, Table, csv_text, neutral_cell, table_of
from tests.webapp import ALICE, BOB, client, store

MB = 1 << 20


def parquet(columns: dict, **options) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, **options)
    return sink.getvalue()


def claims_ten_million_rows() -> bytes:
    """A small file whose footer says that it has ten million rows: true, and nearly for nothing, since all are equal."""
    return parquet({"prompt": pa.array(["a"]).dictionary_encode().take(pa.array([0] * 10_000_000, pa.int32()))})


def huge_when_unpacked() -> bytes:
    """A few kilobytes that unpack to 300 MB."""
    return parquet({"prompt": ["x" * 100_000] * 3000}, compression="zstd", use_dictionary=False)


def lying_footer() -> bytes:
    """One cell of 40 kB, kept once, for 60,000 rows: what is claimed is small, what comes is not."""
    return parquet({"prompt": pa.array(["x" * 40_000]).dictionary_encode().take(pa.array([0] * 60_000, pa.int32()))}, store_schema=False)


class Dangerous:
    def __reduce__(self):
        return os.system, ("touch /tmp/lab-upload-was-unpickled",)


BAD = {
    "latin-1.csv": ("prompt,answer\nIst das schön?,ja\n".encode("latin-1"), "is not UTF-8 text (line 2, byte 0xf6)"),
    "utf-16.csv": ("prompt,answer\na,b\n".encode("utf-16"), "is text in UTF-16"),
    "empty.jsonl": (b"", "is empty"),
    "blank.csv": (b" \n\n", "is empty"),
    "header.csv": (b"prompt,answer\n", "has no rows under its header"),
    "bomb.jsonl": (b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n", "line 1: not valid JSON (too deeply nested)"),
    "deep.jsonl": (b'{"prompt": "a", "x": ' + b"[" * 20 + b"]" * 20 + b"}\n", "column 'x' nests lists and objects more than 8 deep"),
    "nan.jsonl": (b'{"prompt": "a", "score": NaN}\n', "line 1: NaN is not JSON"),
    "infinite.jsonl": (b'{"prompt": "a"}\n{"prompt": "a", "score": -Infinity}\n', "line 2: -Infinity is not JSON"),
    "overflow.jsonl": (b'{"prompt": "a", "score": 1e999}\n', "column 'score' is inf"),
    "digits.jsonl": (b'{"prompt": "a", "n": ' + b"9" * 5000 + b"}\n", "a number with too many digits"),
    "half.jsonl": (b'{"prompt": "\\ud800"}\n', "holds half a character"),
    "twice.jsonl": (b'{"prompt": "a", "prompt": "b"}\n', "'prompt' occurs twice"),
    "list.jsonl": (b"[1, 2]\n", "line 1: a list; expected an object"),
    "cut.jsonl": (b'{"prompt": "a"}\n{"prompt": "b"\n', "line 2: not valid JSON"),
    "twice.csv": (b"prompt,answer,answer\na,b,c\n", "two columns named 'answer'"),
    "unnamed.csv": (b"prompt,,answer\na,b,c\n", "column 2 has no usable name"),
    "ragged.csv": (b"prompt,answer\na,b\nc,d,e\n", "line 3: 3 cells for 2 columns"),
    "open.csv": (b'prompt,answer\n"a,b\n', "not valid CSV"),
    "zeros.csv": (b"prompt,answer\na,\0\n", "holds zero bytes in line 2"),
    "wide.csv": (",".join(f"c{i}" for i in range(101)).encode() + b"\n" + b"1," * 100 + b"1\n", "has 101 columns; at most 100"),
    "rows.csv": (b"p\n" + b"x\n" * 100_001, "has more than 100,000 rows"),
    "cell.csv": (lambda: b"prompt\n" + b"y" * (19 * MB) + b"\n", "a cell has more than 50,000 characters"),
    "cell.jsonl": (lambda: b'{"prompt": "' + b"z" * (19 * MB) + b'"}\n', "has 19,922,944 characters; a cell may have 50,000"),
    "cell-50.jsonl": (lambda: b'{"prompt": "' + b"z" * (50 * MB) + b'"}\n', "has 52.4 MB; at most 21 MB are taken"),
    "archive.jsonl": (gzip.compress(b'{"prompt": "a"}\n' * 100_000), "is a gzip archive"),
    "excel.csv": (b"PK\x03\x04" + b"0" * 100, "is a ZIP archive (an Excel workbook is one too)"),
    "pickle.parquet": (pickle.dumps(Dangerous()), "is not a Parquet file but a Python pickle"),
    "pickle.csv": (pickle.dumps(Dangerous()), "is a Python pickle"),
    "text.parquet": (b"prompt,answer\na,b\n", "is not a Parquet file but something else"),
    "gzip.parquet": (gzip.compress(b"\0" * 50 * MB), "is not a Parquet file but a gzip archive"),
    "cut.parquet": (parquet({"prompt": ["a"]})[:-4], "was cut off"),
    "footer.parquet": (b"PAR1" + b"\0" * 16 + b"\xff\xff\xff\x7fPAR1", "claims a footer larger than itself"),
    "broken.parquet": (b"PAR1" + b"\x01" * 200 + (100).to_bytes(4, "little") + b"PAR1", "is not a Parquet file that can be read"),
    "nan.parquet": (parquet({"prompt": ["a", "b"], "score": [1.0, float("nan")]}), "row 2, column 'score' is nan"),
    "bytes.parquet": (parquet({"prompt": [b"a"]}), "only columns of bytes"),
    "empty.parquet": (parquet({"prompt": pa.array([], pa.string())}), "has no rows"),
    "claim.parquet": (claims_ten_million_rows, "claims 10,000,000 rows; at most 100,000"),
    "bomb.parquet": (huge_when_unpacked, "would unpack to 300 MB"),
    "lie.parquet": (lying_footer, "MB of text: take a part of it"),
    "names.parquet": (lambda: parquet_with_equal_names(), "two columns named 'prompt'"),
    "notes.txt": (b"hello", "does not end in .jsonl"),
}


def parquet_with_equal_names() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["prompt", "prompt"]), sink)
    return sink.getvalue()


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_gives_one_sentence(tmp_path, name):
    content, said = BAD[name]
    path = tmp_path / "upload"
    path.write_bytes(content() if callable(content) else content)
    with pytest.raises(TaskError) as caught:
        read_upload(path, name)
    sentence = str(caught.value)
    assert said in sentence and name in sentence and sentence.endswith(".") and len(sentence) < 400 and "\n" not in sentence
    assert str(tmp_path) not in sentence


def test_nothing_was_unpickled():
    assert not os.path.exists("/tmp/lab-upload-was-unpickled")


def test_good_files_of_every_kind_give_the_same_rows(tmp_path):
    rows = [{"prompt": "What is 1 + 1?", "answer": "2"}, {"prompt": "Berapakah 2 + 2? 中文", "answer": "4"}]
    files = {
        "a.jsonl": "\ufeff".encode() + "\r\n".join(json.dumps(row) for row in rows).encode(),  # a byte-order mark, Windows' line ends
        "a.json": json.dumps(rows, ensure_ascii=False, indent=1).encode(),
        "a.csv": ("\ufeffprompt,answer\r\n" + "".join(f'"{r["prompt"]}",{r["answer"]}\r\n' for r in rows)).encode(),
        "b.csv": ("prompt;answer\n" + "".join(f"{r['prompt']};{r['answer']}\n" for r in rows)).encode(),
        "a.tsv": ("prompt\tanswer\n" + "".join(f"{r['prompt']}\t{r['answer']}\n" for r in rows)).encode(),
        "a.parquet": parquet({"prompt": [r["prompt"] for r in rows], "answer": [r["answer"] for r in rows]}),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        table = read_upload(tmp_path / name, name)
        assert table.columns == ["prompt", "answer"] and table.rows == rows, name


def test_mixed_types_are_kept_and_become_text_only_as_an_answer():
    table = table_of(b'{"prompt": "a", "answer": 1, "x": [1]}\n{"prompt": "b", "answer": "two"}\n{"prompt": "c", "answer": true}\n'
                     b'{"prompt": "d", "answer": 2.5, "x": {"y": null}}\n{"prompt": "e", "answer": null}\n', "mixed.jsonl", UPLOAD)
    rows = apply(table, guess(table))
    assert [row.get("answer") for row in rows] == ["1", "two", "true", "2.5", None]
    assert rows[0]["x"] == [1] and "x" not in rows[1] and rows[3]["x"] == {"y": None}


def test_parquet_dates_become_text_and_bytes_are_left_out():
    import datetime
    import decimal

    table = table_of(parquet({"prompt": ["a"], "day": [datetime.date(2026, 1, 2)], "price": [decimal.Decimal("1.50")],
                              "image": [b"\x89PNG"], "tags": [["x", "y"]]}), "t.parquet", UPLOAD)
    assert table.rows == [{"prompt": "a", "day": "2026-01-02", "price": "1.50", "tags": ["x", "y"]}]
    assert table.notes == ["Left out, because bytes are no text: image."]


def test_formula_cells_stay_text_and_are_neutral_in_an_export():
    table = table_of(b'prompt,answer\n"=HYPERLINK(""http://x"",""y"")",@SUM(1)\n+1,-5\n', "f.csv", UPLOAD)
    assert table.rows[0] == {"prompt": '=HYPERLINK("http://x","y")', "answer": "@SUM(1)"}
    assert csv_text(table.rows).splitlines()[1:] == ['"\'=HYPERLINK(""http://x"",""y"")",\'@SUM(1)', "+1,-5"]  # numbers are no formulas


@given(st.text(max_size=30))
def test_no_exported_cell_begins_a_formula(text):
    cell = neutral_cell(text)
    try:
        float(text)
    except ValueError:
        assert cell.lstrip(" ")[:1] not in tuple("=+-@\t\r\n|%"), cell


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300), st.sampled_from(["x.jsonl", "x.json", "x.csv", "x.tsv", "x.parquet"]), st.booleans())
def test_any_bytes_give_a_table_or_a_sentence(data, name, framed):
    if framed and name == "x.parquet":
        data = b"PAR1" + data + len(data).to_bytes(4, "little") + b"PAR1"
    try:
        table = table_of(data, name, Limits(file_bytes=MB, rows=100))
    except TaskError as error:
        assert str(error).endswith(".")
    else:
        assert isinstance(table, Table) and table.rows and all(list(row) == table.columns for row in table.rows)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.fixed_dictionaries({"prompt": st.text(min_size=1, max_size=20), "answer": st.text(max_size=20)}),
                min_size=1, max_size=5))
def test_rows_survive_jsonl_as_they_were(rows):
    text = "".join(json.dumps(row) + "\n" for row in rows)
    assert table_of(text.encode(), "x.jsonl", UPLOAD).rows == rows


# -- columns


def test_a_missing_column_is_named_with_those_there_are():
    table = Table(["question", "reply"], [{"question": "a", "reply": "b"}])
    with pytest.raises(TaskError, match=r"There is no column 'answer' \(columns: question, reply\)"):
        apply(table, Mapping("question", "answer"))


@pytest.mark.parametrize("answer", ["B", "b", "(B)", "2", "zwei"])
def test_an_answer_to_multiple_choice_becomes_its_letter(answer):
    table = Table(["question", "choices", "answer"], [{"question": "q", "choices": "eins|zwei|drei", "answer": answer},
                                                     {"question": "q", "choices": "eins|zwei|drei", "answer": "3"}])
    rows = apply(table, guess(table))
    assert rows[0]["answer"] == "B" and rows[1]["answer"] == "C"
    assert rows[0]["prompt"] == "q\nA. eins\nB. zwei\nC. drei" and rows[0]["choices"] == ["eins", "zwei", "drei"]


def test_numbers_count_from_zero_where_a_zero_occurs():
    table = Table(["question", "choices", "answer"], [{"question": "q", "choices": ["x", "y"], "answer": place} for place in (0, 1)])
    assert [row["answer"] for row in apply(table, guess(table))] == ["A", "B"]


def test_choices_may_be_columns_of_their_own_or_bring_labels():
    table = Table(["question", "A", "B", "answer"], [{"question": "q", "A": "x", "B": "y", "answer": "B"}])
    assert guess(table).choices == ("A", "B") and apply(table, guess(table))[0]["answer"] == "B"
    labelled = Table(["question", "choices", "answerKey"], [{"question": "q", "choices": {"text": ["x", "y"], "label": ["1", "2"]},
                                                            "answerKey": "2"}])
    assert apply(labelled, guess(labelled))[0]["answer"] == "B"


def test_an_answer_that_is_no_choice_is_refused_with_its_row():
    table = Table(["question", "choices", "answer"], [{"question": "q", "choices": ["x", "y"], "answer": "z"}])
    with pytest.raises(TaskError, match="Row 1: the answer 'z' is none of its 2 choices"):
        apply(table, guess(table))


def test_a_solution_with_hashes_gives_what_stands_behind_them():
    table = Table(["question", "answer"], [{"question": "q", "answer": "2 + 2 = 4\n#### 4"}])
    assert apply(table, guess(table)) == [{"prompt": "q", "answer": "4"}]


def test_a_system_column_goes_before_the_prompt_and_reserved_names_are_kept_aside():
    table = Table(["prompt", "system", "completions"], [{"prompt": "p", "system": "be brief", "completions": 3}])
    assert apply(table, guess(table)) == [{"prompt": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "p"}],
                                           "completions_column": 3}]


# -- through the page's routes


def send(name: str, content: bytes, owner: str = ALICE):
    return client(owner).post(f"/api/data/upload?name={name}", content=content)


def datasets(owner: str = ALICE) -> list:
    return client(owner).get("/api/data").json()["datasets"]


def test_a_refused_upload_leaves_nothing_behind():
    before = datasets()
    good = send("good.csv", b"prompt,answer\na,1\n").json()
    bad = {"pickle.parquet": pickle.dumps([1]), "bad.csv": b"a,a\n1,2\n", "late.jsonl": b'{"prompt": "a"}\n' * 500 + b"{"}
    for name, content in bad.items():
        answer = send(name, content)
        assert answer.status_code == 422 and answer.json()["error"].startswith(name)
    assert datasets() == before
    kept = client().post("/api/data/preview", json={"source": {"kind": "kept", "token": good["token"]}})
    assert kept.json()["n_rows"] == 1  # the good file before is still whole
    bad_row = send("rows.jsonl", b'{"prompt": "a"}\n' * 99 + b'{"prompt": ""}\n').json()
    refused = client().post("/api/data", json={"source": {"kind": "kept", "token": bad_row["token"]}, "name": "x"})
    assert refused.status_code == 422 and "Row 100: the prompt" in refused.json()["error"] and datasets() == before


def test_a_body_that_never_ends_is_stopped_at_the_limit():
    answer = client().post("/api/data/upload?name=a.csv", content=(b"x" * MB for _ in range(25)))
    assert answer.status_code == 413 and "more than 21 MB" in answer.json()["error"]


def test_uploads_and_data_sets_are_seen_by_their_owner_alone():
    token = send("mine.csv", b"question,answer,level\n=1+1,2,hard\nb,3,easy\n").json()["token"]
    source = {"kind": "kept", "token": token}
    assert client(BOB).post("/api/data", json={"source": source}).status_code == 422
    made = client().post("/api/data", json={"source": source, "name": "mine", "held_out_share": 0}).json()
    assert made["n_rows"] == 2 and made["task"] == f"data/{made['id']}.jsonl" and made["id"] not in [d["id"] for d in datasets(BOB)]
    for path in ("", "/export"):
        assert client(BOB).get(f"/api/data/{made['id']}{path}").status_code == 404
    assert client(BOB).post("/api/runs", json={"config": {"task": made["task"]}}).status_code == 404
    assert client(BOB).post(f"/api/data/{made['id']}/delete").status_code == 404
    export = client().get(f"/api/data/{made['id']}/export?format=csv")
    assert export.text.splitlines() == ["prompt,answer,level", "'=1+1,2,hard", "b,3,easy"]
    assert "attachment" in export.headers["content-disposition"]
    assert client().post(f"/api/data/{made['id']}/delete").status_code == 200 and made["id"] not in [d["id"] for d in datasets()]


def test_a_run_started_on_a_data_set_has_its_file_and_its_name():
    token = send("sums.csv", b"prompt,answer\nWhat is 1 + 1?,2\nWhat is 2 + 2?,4\n", "c" * 32).json()["token"]
    page = client("c" * 32)
    made = page.post("/api/data", json={"source": {"kind": "kept", "token": token}, "name": "Small sums", "held_out_share": 0.0}).json()
    run = page.post("/api/runs", json={"config": {"task": made["task"]}}).json()["run"]
    config = store().run(run).config
    assert config["task"].endswith(f"/data/{made['id']}.jsonl") and os.path.isfile(config["task"])
    assert page.get(f"/api/runs/{run}").json()["task"] == "small-sums"
    assert store().newest_command(run, "preflight").id < store().newest_command(run, "train").id
    store().set_status(run, "stopped")


def test_the_page_answers_while_a_file_is_read():
    """The reader is another process: this one only waits for it, in a thread."""
    from concurrent.futures import ThreadPoolExecutor

    slow = b'{"prompt": "a", "x": [' + b"1," * 4000 + b"1]}\n"
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(send, "slow.jsonl", slow * 1500)
        answered = 0
        while not reading.done():
            assert client().get("/api/data").status_code == 200
            answered += 1
            time.sleep(0.01)
    assert answered and reading.result().status_code in (200, 422)


# -- the reading process


def test_the_reading_process_is_locked_where_the_machine_can(tmp_path):
    from lab.rewards.sandbox import probe

    if not probe().is_locked:
        pytest.skip("this kernel gives no lock; the page says so")
    (tmp_path / "a.csv").write_text("prompt\na\n")
    code = ("import sys, runpy, json, socket\n"
            "import lab.tasks.tables as tables\n"
            "def tries(*rest):\n"
            "    found = {}\n"
            "    for name, act in (('write', lambda: open('/tmp/x', 'w')), ('read', lambda: open('/etc/passwd')),\n"
            "                      ('socket', lambda: socket.socket()), ('fork', lambda: __import__('os').fork())):\n"
            "        try:\n"
            "            act()\n"
            "            found[name] = 'allowed'\n"
            "        except OSError:\n"
            "            found[name] = 'refused'\n"
            "    return tables.Table(list(found), [found])\n"
            "tables.table_of = tries\n"
            "sys.argv = ['reader_process.py', sys.argv[1]]\n"
            "runpy.run_path('lab/tasks/reader_process.py', run_name='__main__')\n")
    setup = {"do": "file", "name": "a.csv", "limits": vars(UPLOAD), "cpu_seconds": 20, "memory_bytes": 1 << 30}
    with (tmp_path / "a.csv").open("rb") as file:
        done = subprocess.run([sys.executable, "-c", code, json.dumps(setup)], stdin=file, capture_output=True, text=True)
    assert json.loads(done.stdout)["rows"] == [{"write": "refused", "read": "refused", "socket": "refused", "fork": "refused"}], done.stderr


def test_a_reader_that_hangs_is_ended_and_said(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"prompt\na\n")
    with pytest.raises(TaskError, match="could not be read: it needs more memory or time"):
        read_upload(path, "a.csv", seconds=0.0)
