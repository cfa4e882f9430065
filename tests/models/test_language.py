"""Language models of Hugging Face: both segments are the uncut model, and each wrong folder is one sentence."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from privkit.audit.run import run_audit
from privkit.defenses.none import NoDefense
from privkit.domains import Tokens
from privkit.domains.base import Batch
from privkit.errors import UsageError
from privkit.models.language import HuggingFace
from privkit.parts.registry import parse
from privkit.training import Clients, SplitProtocol, TrainingSpec, train
from privkit.training.stacked import Stacked

WORDS = Tokens(length=6, vocabulary=("", "?", *"abcdefgh"))
SIZE = {
    "vocab_size": 12,
    "max_position_embeddings": 8,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 32,
}
GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "vocab_size": 12,
    "n_positions": 8,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": GPT2,
    "llama": {"model_type": "llama", **SIZE},
    "bert": {"model_type": "bert", "pad_token_id": 0, **SIZE},
    "windows": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 3,
        "layer_types": ["full_attention", "sliding_attention"],
        **SIZE,
    },
}
TEXTS = WORDS.random(5, torch.Generator().manual_seed(1))

needs = pytest.mark.needs("language")


def folder(path: Path, config: dict[str, Any] = GPT2) -> str:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(path)


def build(path: str, domain: Tokens = WORDS, seed: int = 0, **fields: Any) -> Any:
    return HuggingFace(path=path, **fields).build(domain, 3, positions=True, seed=seed)


def uncut(path: str, split: Any, seed: int = 0) -> Tensor:
    """Logits of the same weights by transformers alone."""
    from transformers import AutoConfig, AutoModel

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        whole = AutoModel.from_config(AutoConfig.from_pretrained(path)).eval()
    logits: Tensor = split.upper.head(whole(input_ids=TEXTS, use_cache=False).last_hidden_state[:, -1])
    return logits


def test_without_its_package_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UsageError, match=r"hf needs the package transformers: pip install 'privkit-sl\[language\]'"):
        build(folder(tmp_path))


def test_a_folder_that_is_no_models_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"hf needs the folder of a model, with its config\.json: --model hf:path=DIR"):
        build("")
    with pytest.raises(UsageError, match="and gpt2-missing has none"):
        build("gpt2-missing")
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(UsageError, match=r"holds pickled weights \(pytorch_model\.bin\), and a pickle may run code"):
        build(folder(tmp_path))


def test_options_are_those_of_the_command_line() -> None:
    component = parse("models", "hf:path=gpt2,block=2,lora=8")
    assert component.spec == HuggingFace(path="gpt2", block=2, lora=8)
    assert component.label == "hf:path=gpt2,block=2,lora=8"
    with pytest.raises(UsageError, match="block must be a whole number >= 0"):
        parse("models", "hf:block=-1")


@needs
@pytest.mark.parametrize("block", [0, 1, 2])
@pytest.mark.parametrize("name", CONFIGS)
def test_both_segments_are_the_uncut_model(name: str, block: int, tmp_path: Path) -> None:
    path = folder(tmp_path, CONFIGS[name])
    split = build(path, block=block)
    with torch.no_grad():
        tokens = split.lower.train()(TEXTS)  # in training, too: nothing is dropped
        torch.testing.assert_close(split.upper.train()(tokens), uncut(path, split), atol=1e-5, rtol=0)
        clients = Stacked(split.lower, 3)
        clients.settle(TEXTS.expand(3, *TEXTS.shape))
        assert clients.batched
        torch.testing.assert_close(clients(TEXTS.expand(3, *TEXTS.shape))[2], tokens, atol=1e-5, rtol=0)
    assert tokens.shape == (5, 6, 16)
    assert split.hides_places is (True if name in ("llama", "windows") and block == 0 else None)


@needs
def test_all_weights_that_learn_matter_and_the_seed_gives_them(tmp_path: Path) -> None:
    path = folder(tmp_path, CONFIGS["bert"])
    first, again, other = (build(path, seed=seed) for seed in (0, 0, 1))
    first.upper(first.lower(TEXTS)).sum().backward()
    for half in (first.lower, first.upper):
        assert all((weight.grad is not None) == weight.requires_grad for weight in half.parameters())
    a, b, c = (split.lower.state_dict() for split in (first, again, other))
    assert all(torch.equal(a[key], b[key]) for key in a)
    assert not all(torch.equal(a[key], c[key]) for key in a)


@needs
def test_safetensors_are_loaded_or_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file
    from transformers import GPT2Config, GPT2LMHeadModel

    with torch.random.fork_rng():
        torch.manual_seed(5)
        published = GPT2LMHeadModel(GPT2Config(**GPT2)).half().eval()
    published.save_pretrained(tmp_path)
    split = build(str(tmp_path))
    whole = published.float().transformer(input_ids=TEXTS).last_hidden_state
    with torch.no_grad():
        torch.testing.assert_close(split.upper.states(split.lower(TEXTS)), whole, atol=1e-5, rtol=0)
    (file,) = tmp_path.glob("*.safetensors")
    assert HuggingFace(path=str(tmp_path)).files() == [tmp_path / "config.json", file]
    state = load_file(file)
    del state["transformer.h.1.mlp.c_fc.weight"]
    save_file(state, file, {"format": "pt"})
    with pytest.raises(UsageError, match=r"lack h\.1\.mlp\.c_fc\.weight; fetch all files"):
        build(str(tmp_path))
    file.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(UsageError, match="cannot be read as a model: SafetensorError"):
        build(str(tmp_path))


@needs
def test_what_does_not_fit_is_one_sentence(tmp_path: Path) -> None:
    path = folder(tmp_path)
    with pytest.raises(UsageError, match=r"block must lie in 0\.\.2, the blocks of .*, got 3"):
        build(path, block=3)
    with pytest.raises(
        UsageError, match=r"reads at most 8 tokens, and texts have 9: give the dataset length=8 or less"
    ):
        build(path, Tokens(length=9, vocabulary=WORDS.vocabulary))
    with pytest.raises(UsageError, match=r"knows 12 tokens, and the dataset has 13: give the dataset vocabulary=12"):
        build(path, Tokens(length=6, vocabulary=tuple(map(str, range(13)))))
    with pytest.raises(UsageError, match=r"decoders and encoders of texts, and .* is of type t5"):
        build(folder(tmp_path, {"model_type": "t5", "vocab_size": 12}))
    with pytest.raises(UsageError, match=r"hf cannot cut a model of type albert behind block 1: "):
        build(folder(tmp_path, {"model_type": "albert", **SIZE}))
    remote = {"model_type": "own", "auto_map": {"AutoConfig": "own.Config", "AutoModel": "own.Model"}}
    (tmp_path / "own.py").write_text("raise SystemExit('run')")
    with pytest.raises(UsageError, match="cannot be read as a model: ValueError"):
        build(folder(tmp_path, remote))


@needs
def test_ids_are_those_of_the_folders_tokenizer(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    path = folder(tmp_path)
    numbers = {"<|endoftext|>": 0, **{letter: 9 - place for place, letter in enumerate("abcdefgh")}}
    Tokenizer(models.WordLevel(numbers, unk_token="<|endoftext|>")).save(str(tmp_path / "tokenizer.json"))
    with_own = build(path)
    ids = torch.tensor([0, 0, 9, 8, 7, 6, 5, 4, 3, 2])
    assert with_own.lower.base.get_input_embeddings().num_embeddings == 10  # an attack counts the words there
    more = Tokens(length=6, vocabulary=tuple(map(str, range(12))))
    plain = build(folder(tmp_path / "plain"), more)
    assert torch.equal(with_own.lower(TEXTS), plain.lower(ids[TEXTS]))
    with pytest.raises(UsageError, match=r"tokens that .* and its model lack, such as 'z': read the texts with"):
        build(path, Tokens(length=6, vocabulary=("", "?", "a", "z")))


@needs
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_with_lora_only_adapters_of_the_client_learn(name: str, tmp_path: Path) -> None:
    path = folder(tmp_path, CONFIGS[name])
    plain, split = build(path), build(path, lora=2)
    torch.testing.assert_close(split.lower(TEXTS), plain.lower(TEXTS))  # adapters start at zero
    names = [name for name, weight in split.lower.named_parameters() if weight.requires_grad]
    assert names
    assert all("lora_" in name for name in names)
    assert any(weight.requires_grad for weight in split.upper.parameters())
    with pytest.raises(UsageError, match=r"with block=0 it has none: take block=1 or more"):
        build(path, lora=2, block=0)


@needs
def test_without_peft_lora_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UsageError, match="lora needs the package peft"):
        build(folder(tmp_path), lora=2)


@needs
def test_an_audit_reads_texts_of_a_model_that_is_not_trained(tmp_path: Path) -> None:
    """The search knows the weights, and nothing is noisy: it reads every word behind both blocks."""
    run = run_audit(
        dataset="definitions:vocabulary=300",
        model=f"hf:path={folder(tmp_path / 'gpt2', GPT2 | {'vocab_size': 300, 'n_positions': 16})},block=2",
        defense="none",
        attack="token_search:epochs=1",
        budget="smoke:epochs=0,private=40,auxiliary=40,test=20,victims=10",
        training="batch_size=10",
        out=tmp_path / "run",
    )
    (row,) = run.rows
    assert row.recovered["unaligned"]["token_accuracy"].value > 0.95


@needs
@pytest.mark.parametrize("lora", [0, 2])
def test_both_segments_learn(lora: int, tmp_path: Path) -> None:
    """Two clients, one epoch: the client's weights move, or with LoRA its adapters alone."""
    split = build(folder(tmp_path), lora=lora)
    before = {name: weight.clone() for name, weight in split.lower.named_parameters()}
    protocol = SplitProtocol(clients=2)
    edge = Clients.build(split.lower, NoDefense(), WORDS, classes=3, seed=0, protocol=protocol)
    data = Batch(x=TEXTS[:4], y=torch.arange(4) % 3, ids=torch.arange(4), domain=WORDS)
    train(edge, split.upper, data, TrainingSpec(batch_size=2), epochs=1, seed=0)
    moved = {name for name, weight in edge.lowers.copy(0).named_parameters() if not torch.equal(weight, before[name])}
    learns = {name for name, weight in split.lower.named_parameters() if weight.requires_grad}
    assert moved
    assert moved <= learns


@needs
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_next_token_is_read_by_the_models_own_head(name: str, tmp_path: Path) -> None:
    """The head's logits are those of transformers, and its dataset's tokens alone; tied weights or not."""
    from transformers import AutoConfig, AutoModelForCausalLM

    path = folder(tmp_path, CONFIGS[name])
    split = build(path, task="next_token")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        whole = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path)).eval()
    with torch.no_grad():
        logits = split.upper(split.lower(TEXTS))
        torch.testing.assert_close(logits, whole(input_ids=TEXTS).logits[..., :10], atol=1e-5, rtol=0)
    assert split.predicts == "texts"


@needs
def test_a_model_that_sees_what_follows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"needs a causal model, but in .* a token sees later tokens"):
        build(folder(tmp_path, GPT2 | {"model_type": "bert", **SIZE, "is_decoder": False}), task="next_token")


@needs
def test_an_audit_of_the_next_token_reads_words_from_gradients(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "dataset": "definitions:vocabulary=300",
        "model": f"hf:path={folder(tmp_path / 'gpt2', GPT2 | {'vocab_size': 300, 'n_positions': 16})},task=next_token",
        "budget": "smoke:epochs=1,private=40,auxiliary=40,test=20,victims=10",
        "training": "batch_size=10",
    }
    run = run_audit(defense="none", attack="tail_inversion", protocol="u_shape", out=tmp_path / "run", **settings)
    assert run.rows[0].answers["label_accuracy"].value > 0.9
    with pytest.raises(UsageError, match="this protocol sends labels to the server: use --protocol u_shape"):
        run_audit(defense="none", attack="token_search", out=tmp_path / "sent", **settings)
