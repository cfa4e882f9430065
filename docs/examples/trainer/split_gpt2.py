"""Fine-tune a small GPT-2 with the Trainer of Hugging Face, and record the tokens after its first block."""

import sys
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2ForSequenceClassification, Trainer, TrainingArguments

import privkit
from privkit.domains import Tokens

WORDS, LENGTH = 60, 12
texts = torch.randint(2, WORDS, (400, LENGTH), generator=torch.Generator().manual_seed(0))
data = [{"input_ids": text, "labels": int(text[0] % 2)} for text in texts[:200]]
sizes = {"vocab_size": WORDS, "n_positions": LENGTH, "n_embd": 32, "n_layer": 2, "n_head": 2}
special = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
model = GPT2ForSequenceClassification(GPT2Config(**sizes, **special, embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0))


class Client(nn.Module):
    """The client's layers: the embeddings and the first block."""

    def __init__(self, gpt2: Any) -> None:
        super().__init__()
        self.words, self.places, self.block = gpt2.wte, gpt2.wpe, gpt2.h[0]

    def forward(self, ids: Tensor) -> Tensor:
        """Ids [N, T] -> tokens [N, T, D]."""
        tokens: Tensor = self.block(self.words(ids) + self.places(torch.arange(ids.shape[1])))
        return tokens


recorder = privkit.Recorder()
batch: dict[str, Tensor] = {}


def crosses(block: nn.Module, given: Any, tokens: Tensor) -> None:
    """Record the block's output for a batch, which the client would send to the server, as one round."""
    if block.training:  # evaluations are not recorded
        recorder(tokens, x=batch["input_ids"], y=batch["labels"])


model.register_forward_pre_hook(lambda module, given, named: batch.update(named), with_kwargs=True)
model.transformer.h[0].register_forward_hook(crosses)
settings = TrainingArguments("trainer", per_device_train_batch_size=20, num_train_epochs=1, use_cpu=True, report_to=[])
Trainer(model=model, args=settings, train_dataset=data).train()
recorder.save(
    sys.argv[1] if len(sys.argv) > 1 else "recording",
    name="none",
    own=texts[200:],
    lower=Client(model.transformer),
    domain=Tokens(length=LENGTH, vocabulary=("", "?", *map(str, range(2, WORDS)))),
)
