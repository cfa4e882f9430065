"""Language models of Hugging Face from a local folder, cut behind any transformer block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Generator, Tensor, nn

from privkit.constraints import Checked, Whole
from privkit.domains.tokens.domain import Tokens
from privkit.errors import UsageError, one_line
from privkit.models.base import SplitModel
from privkit.models.imported import hides_places
from privkit.torch_utils.out_of_memory import ran_out
from privkit.torch_utils.seeded import seeded
from privkit.training.losses import next_token

_CLOSE = 1e-3  # largest relative error by rounding in a cut network; a wrong cut changes far more
_ONLY_READ = ("config.json", "tokenizer.json", "*.safetensors", "*.safetensors.index.json")
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True, kw_only=True)
class HuggingFace(Checked):
    """A Hugging Face language model, which classifies a text by its last token, or predicts each next token.

    The client has the embeddings and the first blocks; T tokens of size D cross the cut, [N, T, D]. The model's own
    forward method runs both segments, with its positions and attention masks; there is no dropout. Padding counts as an
    ordinary token, since the server cannot recognize padding; in a causal model it does not affect earlier words.

    Nothing is downloaded, unpickled or run from the folder. Needs the package transformers (extra `language`).

    Attributes:
        path: a folder with config.json. If it has model.safetensors, whole or in parts, the weights are loaded;
            otherwise they are drawn from the seed. If it has tokenizer.json, the dataset must use this tokenizer;
            otherwise the dataset's ids are used as the model's ids.
        block: number of blocks at the client, from 0 (only embeddings) to all blocks of the model.
        lora: rank of the LoRA adapters in all linear layers of the client's blocks; then only the adapters are trained
            at the client. 0 means no adapters, and all client weights are trained. Needs the package peft (extra
            `language`).
        task: "label": a new linear layer predicts the label from the last token's state. "next_token": the model's own
            head predicts, after each token, the next one among the dataset's tokens. Texts are then the labels, so the
            protocol must keep labels at the clients.

    Source: Wolf et al. 2020, "Transformers: state-of-the-art natural language processing"; Hu et al. 2022, "LoRA".

    >>> HUGGING_FACE.build(Tokens(length=8, vocabulary=("", "?", "a")), 2, positions=True, seed=0)
    Traceback (most recent call last):
    privkit.errors.UsageError: hf needs the folder of a model, with its config.json: --model hf:path=DIR
    """

    domain: ClassVar[str] = "tokens"

    path: str = ""
    block: Whole = 1
    lora: Whole = 0
    task: Literal["label", "next_token"] = "label"

    @property
    def quick_attacks(self) -> tuple[str, ...]:
        """The attack that `--attack auto` adds for next-token prediction: it infers each next token from a gradient."""
        return ("tail_inversion",) if self.task == "next_token" else ()

    def files(self) -> list[Path]:
        """The files that are read from the folder; their hashes belong to a run's provenance."""
        return [file for pattern in _ONLY_READ for file in sorted(Path(self.path).glob(pattern))] if self.path else []

    def build(self, domain: Tokens, classes: int, *, positions: bool, seed: int) -> SplitModel:
        """Build the segments as `ModelSpec.build` does. `positions` is ignored; `hides_places` is measured instead."""
        with seeded(torch.device("cpu"), seed):
            whole = self._read()
            base = whole.base_model
            self._check_fit(base.config, domain)
            embedding, ids = base.get_input_embeddings(), self._ids(base.config, domain)
            drawn = self.task == "label"
            head = nn.Linear(base.config.hidden_size, classes) if drawn else self._own_head(whole, ids, domain)
            embedding.weight = nn.Parameter(embedding.weight.detach()[ids])  # attacks read the words' embeddings there
            embedding.num_embeddings = len(ids)
            split = self._cut(base, head, domain)
            if self.lora:
                self._adapt(split.lower)
        return split

    @torch.no_grad()
    def _own_head(self, whole: Any, ids: Tensor, domain: Tokens) -> nn.Linear:
        """Build a head for the dataset's tokens, initialized from the causal model's head."""
        own, text = whole.get_output_embeddings(), ids[domain.random(1, Generator().manual_seed(0))]
        states = whole.base_model(input_ids=text, use_cache=False).last_hidden_state
        first = whole.base_model(input_ids=text[:, : (domain.length + 1) // 2], use_cache=False).last_hidden_state
        if not _close(first, states[:, : first.shape[1]]):
            raise UsageError(
                f"hf: task=next_token needs a causal model, but in {self.path} a token sees later tokens; use "
                "task=label"
            )
        logits = whole(input_ids=text, use_cache=False).logits
        if not isinstance(own, nn.Linear) or not _close(own(states), logits):
            raise UsageError(
                f"hf: task=next_token needs a last linear layer, but {self.path} does more behind it; use task=label"
            )
        head = nn.Linear(own.in_features, len(ids), bias=own.bias is not None)
        head.weight.copy_(own.weight[ids])
        if own.bias is not None:
            head.bias.copy_(own.bias[ids])
        return head

    def _read(self) -> Any:
        """Read the whole model in evaluation mode and float32, with the next-token head if `task` is "next_token"."""
        folder = Path(self.path)
        if not self.path or not (folder / "config.json").is_file():
            given = f", and {self.path} has none" if self.path else ""
            raise UsageError(f"hf needs the folder of a model, with its config.json{given}: --model hf:path=DIR")
        weights = [*folder.glob("*.safetensors"), *folder.glob("*.safetensors.index.json")]
        if not weights and (pickled := [file.name for pattern in _PICKLED for file in folder.glob(pattern)]):
            raise UsageError(
                f"hf: {folder} holds pickled weights ({min(pickled)}), and a pickle may run code: put "
                "model.safetensors there, or config.json alone for random weights"
            )
        with _quiet():
            try:
                from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
            except ImportError:
                raise UsageError(
                    "hf needs the package transformers: pip install 'privkit-sl[language]', or take another model of "
                    "texts"
                ) from None
            kind: Any = AutoModel if self.task == "label" else AutoModelForCausalLM
            local = {"local_files_only": True, "trust_remote_code": False}
            try:
                config = AutoConfig.from_pretrained(folder, **local)
                if not weights:
                    return kind.from_config(config, trust_remote_code=False).float().eval()
                base, told = kind.from_pretrained(
                    folder, config=config, use_safetensors=True, output_loading_info=True, **local
                )
            except Exception as error:  # a user's files may raise anything
                if ran_out(error):
                    raise
                raise UsageError(f"hf: {folder} cannot be read as a model: {one_line(error, None)}") from None
        if missing := sorted(name for name in told["missing_keys"] if not name.startswith("pooler.")):
            raise UsageError(f"hf: the weights in {folder} lack {missing[0]}; fetch all files of the model again")
        return base.float().eval()

    def _check_fit(self, config: Any, domain: Tokens) -> None:
        if getattr(config, "is_encoder_decoder", False) or not getattr(config, "vocab_size", 0):
            raise UsageError(f"hf cuts decoders and encoders of texts, and {self.path} is of type {config.model_type}")
        most = getattr(config, "max_position_embeddings", None) or domain.length
        if domain.length > most:
            raise UsageError(
                f"hf: {self.path} reads at most {most} tokens, and texts have {domain.length}: give the dataset "
                f"length={most} or less"
            )
        if not self._own_ids and len(domain.vocabulary) > config.vocab_size:
            raise UsageError(
                f"hf: {self.path} knows {config.vocab_size} tokens, and the dataset has {len(domain.vocabulary)}: give "
                f"the dataset vocabulary={config.vocab_size} or less"
            )

    @property
    def _own_ids(self) -> bool:
        return (Path(self.path) / "tokenizer.json").is_file()

    def _ids(self, config: Any, domain: Tokens) -> Tensor:
        if not self._own_ids:
            return torch.arange(len(domain.vocabulary))
        from tokenizers import Tokenizer

        file, size = Path(self.path) / "tokenizer.json", config.vocab_size
        try:
            known = Tokenizer.from_file(str(file)).get_vocab(with_added_tokens=True)
        except Exception as error:  # tokenizers raises Exception itself
            raise UsageError(f"hf: {file} cannot be read as a tokenizer: {one_line(error, None)}") from None
        if strange := [token for token in domain.vocabulary[2:] if known.get(token, size) >= size]:
            raise UsageError(
                f"hf: the dataset has tokens that {file} and its model lack, such as {strange[0]!r}: read the texts "
                "with the dataset's option tokenizer=FILE, or remove tokenizer.json to use the dataset's ids"
            )
        end = known.get("<|endoftext|>", known.get("</s>", 0))
        padding = next((known[name] for name in ("[PAD]", "<pad>") if name in known), end)
        unknown = next((known[name] for name in ("[UNK]", "<unk>") if name in known), end)
        return torch.tensor([padding, unknown, *(known[token] for token in domain.vocabulary[2:])])

    def _cut(self, base: Any, head: nn.Linear, domain: Tokens) -> SplitModel:
        """Cut the model, and check on one text that both segments together compute the same as the uncut model."""
        try:
            most = len(_blocks(base)[1])
            if self.block > most:
                raise UsageError(f"hf: block must lie in 0..{most}, the blocks of {self.path}, got {self.block}")
            lower, upper = _Lower(base, self.block), _Upper(base, self.block, head, every=self.task == "next_token")
            text = domain.random(1, Generator().manual_seed(0))
            whole = base(input_ids=text, use_cache=False).last_hidden_state
            tokens = lower(text)
            if not _close(upper.states(tokens.detach()), whole):
                raise ValueError("its segments do not give the outputs of the whole model")
            _freeze_unused(lower, tokens)
            _freeze_unused(upper, upper(tokens.detach()))
        except Exception as error:  # an untried architecture may raise anything
            if isinstance(error, UsageError) or ran_out(error):
                raise
            raise UsageError(
                f"hf cannot cut a model of type {base.config.model_type} behind block {self.block}: {one_line(error)}"
            ) from None
        predicts: Literal["labels", "texts"] = "labels" if self.task == "label" else "texts"
        places = hides_places(lower, domain) or None
        return SplitModel(lower=lower, upper=upper, hides_places=places, predicts=predicts)

    def _adapt(self, lower: nn.Module) -> None:
        try:
            from peft import LoraConfig, inject_adapter_in_model
        except ImportError:
            raise UsageError("lora needs peft: pip install 'privkit-sl[language]', or leave lora out") from None
        name, blocks = _blocks(lower)
        layers = [f"{name}.{part}" for part, module in blocks.named_modules() if type(module).__name__ in _LINEAR]
        if not layers:
            raise UsageError("lora adapts the client's blocks, and with block=0 it has none: take block=1 or more")
        turned = any(type(module).__name__ == _LINEAR[1] for module in blocks.modules())
        config = LoraConfig(r=self.lora, lora_alpha=2 * self.lora, target_modules=layers, fan_in_fan_out=turned)
        inject_adapter_in_model(config, lower)


def _close(given: Tensor, wanted: Tensor) -> bool:
    return bool((given - wanted).abs().max() <= _CLOSE * wanted.abs().max())


_LINEAR = ("Linear", "Conv1D")  # classes of linear layers; the second is GPT-2's


@contextmanager
def _quiet() -> Iterator[None]:
    """Context manager that mutes the log lines and progress bars of transformers."""
    try:
        from transformers.utils import logging
    except ImportError:
        yield
        return
    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


def _blocks(network: nn.Module) -> tuple[str, nn.ModuleList]:
    """Name and value of the network's largest list of modules (by weights), which holds its transformer blocks."""
    lists = [(name, part) for name, part in network.named_modules() if isinstance(part, nn.ModuleList)]
    if not lists:
        raise UsageError("hf needs a model whose blocks are a list of modules, and this one has no such list")
    return max(lists, key=lambda named: sum(weight.numel() for weight in named[1].parameters()))


class _Door(nn.Module):
    """Wraps or replaces a transformer block, to insert tokens into the model's forward method or to read its tokens. If
    `tokens` is set before a call, it replaces the block's input; after a call, it holds the block's output.
    """

    def __init__(self, block: nn.Module | None) -> None:
        super().__init__()
        self.block = block
        self.tokens: Tensor | None = None

    def forward(self, hidden_states: Tensor, *others: Any, **named: Any) -> Any:
        if self.tokens is not None:
            hidden_states = self.tokens
        output = hidden_states if self.block is None else self.block(hidden_states, *others, **named)
        self.tokens = output[0] if isinstance(output, tuple) else output
        return output

    def take(self) -> Tensor:
        tokens, self.tokens = self.tokens, None
        assert tokens is not None
        return tokens


class _Segment(nn.Module):
    """A copy of the language model with some of its transformer blocks, without dropout. One block is a `_Door`,
    through which tokens cross the cut. `first` is the first block's number in the model.
    """

    def __init__(self, base: nn.Module, blocks: list[nn.Module], first: int) -> None:
        super().__init__()
        self.name, every = _blocks(base)
        self.base: Any = deepcopy(base, {id(every): deepcopy(nn.ModuleList(blocks))})
        config: Any = self.base.config
        if kinds := getattr(config, "layer_types", None):  # full or windowed attention of each block
            config.layer_types = kinds[first : first + len(blocks)]
        config.num_hidden_layers = len(blocks)

    def door(self, place: int) -> _Door:
        door: _Door = self.base.get_submodule(self.name)[place]
        return door

    def train(self, mode: bool = True) -> _Segment:
        """Stay in evaluation mode, so that there is no dropout; weights are still trained."""
        return super().train(False)


class _Lower(_Segment):
    """The client's segment: token ids [N, T] -> vectors [N, T, D] after the client's last block."""

    def __init__(self, base: nn.Module, block: int) -> None:
        below = list(_blocks(base)[1])[:block]
        super().__init__(base, [*below[:-1], _Door(below[-1] if below else None)], 0)

    def forward(self, ids: Tensor) -> Tensor:
        self.base(input_ids=ids, use_cache=False)
        return self.door(-1).take()


class _Upper(_Segment):
    """The server's segment: runs the remaining blocks on token vectors [N, T, D]. Returns logits after the last token,
    [N, classes]; with `every`, logits after each of the T tokens, [N, T, words].
    """

    def __init__(self, base: nn.Module, block: int, head: nn.Linear, *, every: bool) -> None:
        above = list(_blocks(base)[1])[block:]
        super().__init__(base, [_Door(above[0] if above else None), *above[1:]], block if above else block - 1)
        self.base.set_input_embeddings(nn.Identity())
        self.head, self.every = head, every
        if every:
            self.loss = next_token

    def states(self, tokens: Tensor) -> Tensor:
        """Run the blocks on tokens [N, T, D], which replace the embeddings; returns hidden states [N, T, D]."""
        self.door(0).tokens = tokens
        try:
            states: Tensor = self.base(inputs_embeds=tokens, use_cache=False).last_hidden_state
        finally:
            self.door(0).tokens = None
        return states

    def forward(self, tokens: Tensor) -> Tensor:
        states = self.states(tokens)
        logits: Tensor = self.head(states if self.every else states[:, -1])
        return logits


def _freeze_unused(segment: nn.Module, outputs: Tensor) -> None:
    """Freeze the weights that do not affect the outputs, such as the final norm in the client's copy."""
    weights = list(segment.parameters())
    found = torch.autograd.grad(outputs.sum(), weights, allow_unused=True)
    for weight, gradient in zip(weights, found, strict=True):
        weight.requires_grad_(gradient is not None)


HUGGING_FACE = HuggingFace()  # a model whose folder the user must name
