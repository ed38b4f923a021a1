"""The embedded model before it has learned anything: its byte tokenizer, chat template and architecture.

Leaves out the corpus (`tiny_corpus`), the training (`pretrain_tiny`) and the measuring (`tiny_gates`).
"""

import json
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PAD, END, BOS, UNK = "<|pad|>", "<|end|>", "<|bos|>", "<|unk|>"
SPECIAL_TOKENS = (PAD, END, BOS, UNK, "<|system|>", "<|user|>", "<|assistant|>")
TAGS = ("<think>", "</think>", "<answer>", "</answer>", "<reasoning>", "</reasoning>")
VOCAB_SIZE = 320  # a multiple of 64, which 4-bit kernels like; the rest is reserved
MAX_LENGTH = 512

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'assistant' -%}"
    "{{- '<|assistant|>' -}}{%- generation -%}{{- message['content'] + '<|end|>' -}}{%- endgeneration -%}"
    "{%- elif message['role'] in ('system', 'user') -%}"
    "{{- '<|' + message['role'] + '|>' + message['content'] + '<|end|>' -}}"
    "{%- else -%}"
    "{{- raise_exception('The tiny model knows the roles system, user and assistant, not '"
    " + message['role'] + '.') -}}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer without merges: every Unicode text survives the round trip.

    The tags are ordinary added tokens, so each costs one token and stays visible when special tokens are
    skipped, which is where reward functions look.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    known = [*SPECIAL_TOKENS, *TAGS, *alphabet]
    reserved = [f"<|reserved_{i}|>" for i in range(VOCAB_SIZE - len(known))]
    vocab = {token: i for i, token in enumerate([*known, *reserved])}
    core = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    core.add_tokens([AddedToken(token, special=False, normalized=False) for token in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=END,
        bos_token=BOS,
        unk_token=UNK,
        padding_side="left",
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def build_model() -> LlamaForCausalLM:
    """A Llama of 1,832,640 parameters with random fp32 weights (torch's global generator)."""
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=6,
        max_position_embeddings=MAX_LENGTH,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        attention_bias=False,
        mlp_bias=False,
        pad_token_id=SPECIAL_TOKENS.index(PAD),
        eos_token_id=SPECIAL_TOKENS.index(END),
        bos_token_id=SPECIAL_TOKENS.index(BOS),
    )
    model = LlamaForCausalLM(config)
    # Plain sampling by default: the library's own default (top_k 50) would cut the distribution RL learns from.
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        pad_token_id=config.pad_token_id,
        eos_token_id=config.eos_token_id,
        bos_token_id=config.bos_token_id,
    )
    return model


def save_folder(model: LlamaForCausalLM, folder: Path) -> None:
    """Write bf16 safetensors, config, tokenizer and template, readable by everyone and by transformers 4."""
    folder.mkdir(parents=True, exist_ok=True)
    build_tokenizer().save_pretrained(folder)  # a used tokenizer would store its last padding
    _name_the_portable_tokenizer_class(folder / "tokenizer_config.json")
    kept_dtype = model.dtype
    model.to(torch.bfloat16).save_pretrained(folder)
    model.to(kept_dtype)
    for path in folder.iterdir():
        if path.is_file():
            path.chmod(0o644)


def _name_the_portable_tokenizer_class(path: Path) -> None:
    """transformers 5 writes a class name and a key that version 4 does not know."""
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    settings.pop("backend", None)
    path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
