"""TRL's side of the comparison: its GRPOTrainer, stopped between steps so that ours can take its turn."""

from __future__ import annotations

import queue
import tempfile
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
import transformers

if TYPE_CHECKING:
    from lab.bench import StepTime, Work


def steps(work: Work, gradient_checkpointing: bool = False) -> Iterator[StepTime]:
    """Endless steps of TRL, in a thread that runs only while a step is asked for. Raises ImportError without TRL."""
    from lab.bench import StepTime, clock_of

    clock = clock_of(work)
    go, done = queue.Queue(), queue.Queue()
    sampling = [0.0]

    class OneStep(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, **_):
            if go.get() == "stop":
                raise SystemExit

        def on_step_end(self, args, state, control, **_):
            done.put(None)

    def train():
        try:
            trainer = _trainer(work, clock, sampling, gradient_checkpointing)
            trainer.add_callback(OneStep())
            trainer.train()
        except SystemExit:
            pass
        except BaseException as error:
            done.put(error)

    thread = threading.Thread(target=train, daemon=True)
    thread.start()
    try:
        while True:
            sampling[0] = 0.0
            begin = clock()
            go.put("step")
            failed = done.get()
            if failed is not None:
                raise failed
            yield StepTime(clock() - begin, sampling[0])
    finally:
        go.put("stop")
        thread.join()  # a thread that still holds torch when the program ends brings it down


def _trainer(work: Work, clock, sampling: list[float], gradient_checkpointing: bool):
    from datasets import Dataset
    from peft import LoraConfig
    from trl import GRPOConfig, GRPOTrainer

    from lab.bench import folder_of, prompts, rendered, spread

    torch.set_num_threads(work.threads)
    folder = str(folder_of(work))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rows = Dataset.from_list([{"prompt": rendered(prompt, tokenizer)} for prompt in prompts(work, tokenizer)])
    dtype = getattr(torch, work.dtype)
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="bench-trl-"), per_device_train_batch_size=work.num_generations,
        gradient_accumulation_steps=work.prompts_per_step, num_generations=work.num_generations,
        max_completion_length=work.completion_tokens, generation_kwargs=dict(min_new_tokens=work.completion_tokens),
        beta=work.beta, bf16=work.dtype == "bfloat16", gradient_checkpointing=gradient_checkpointing, use_cpu=work.device == "cpu",
        max_steps=10**6, report_to=[], logging_strategy="no", save_strategy="no", disable_tqdm=True, learning_rate=2e-5,
    )
    trainer = GRPOTrainer(
        model=_model(folder, dtype, work), reward_funcs=spread, args=config, train_dataset=rows, processing_class=tokenizer,
        peft_config=LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    real = trainer._generate

    def timed_generate(*args, **kwargs):
        begin = clock()
        result = real(*args, **kwargs)
        sampling[0] += clock() - begin
        return result

    trainer._generate = timed_generate
    return trainer


def _model(folder: str, dtype: torch.dtype, work: Work):
    quantised = {}
    if work.load_in_4bit:
        quantised = dict(device_map={"": work.device}, quantization_config=transformers.BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype))
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **quantised)
