"""Decoders whose costs are known by construction."""

import time

import torch
import transformers

MIB = 1 << 20
PREFILL_S, STEP_S = 0.020, 0.010


@torch.library.custom_op("truth_generation::wait", mutates_args=())
def wait(x: torch.Tensor, seconds: float) -> torch.Tensor:
    """Takes `seconds`, asleep."""
    time.sleep(seconds)
    return x.clone()


wait.register_fake(lambda x, seconds: torch.empty_like(x))


def config():
    return transformers.GPT2Config(
        n_embd=16, n_head=2, n_layer=1, n_positions=64, vocab_size=32, bos_token_id=None, eos_token_id=None
    )


class Waits(transformers.GPT2LMHeadModel):
    """Reading the prompt waits 20 ms, each further token 10 ms."""

    def forward(self, input_ids=None, past_key_values=None, use_cache=None, logits_to_keep=0):
        output = super().forward(
            input_ids=input_ids,
            past_key_values=past_key_values,
            use_cache=use_cache,
            logits_to_keep=logits_to_keep,
        )
        output.logits = wait(output.logits, PREFILL_S if input_ids.shape[1] > 1 else STEP_S)
        return output


class Grows(transformers.GPT2LMHeadModel):
    """Reading a prompt, a sample needs 64 MiB in eager, and 1 MiB compiled."""

    def forward(self, input_ids=None, past_key_values=None, use_cache=None, logits_to_keep=0):
        output = super().forward(
            input_ids=input_ids,
            past_key_values=past_key_values,
            use_cache=use_cache,
            logits_to_keep=logits_to_keep,
        )
        if input_ids.shape[1] > 1:
            share = 1 if torch.compiler.is_compiling() else 64
            space = torch.ones(input_ids.shape[0], share, MIB // 4)
            output.logits = output.logits + 0 * space[:, :1, :1]
        return output


def prompts(batch_size):
    return {"input_ids": torch.randint(32, (batch_size, 8))}


def waits(batch_size):
    torch.manual_seed(0)
    return Waits(config()), prompts(batch_size)


def grows(batch_size):
    torch.manual_seed(0)
    return Grows(config()), prompts(batch_size)


def no_cache(batch_size):
    return torch.nn.Embedding(32, 16), prompts(batch_size)
