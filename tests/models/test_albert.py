"""ALBERT: the size of the published network, its mask, its checkpoint, and what is said without its package."""

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from privkit.domains import Tokens
from privkit.errors import UsageError
from privkit.models import SplitModel
from privkit.models.texts import ALBERT, Albert

WORDS = Tokens(length=5, vocabulary=("", "?", "a", "b", "c"))
SMALL = Albert(width=16, depth=2, heads=2)


@pytest.fixture(scope="module")
def split() -> SplitModel:
    return SMALL.build(WORDS, 3, positions=True, seed=0)


def test_without_its_package_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UsageError, match=r"albert needs the package transformers: pip install 'privkit-sl\[albert\]'"):
        SMALL.build(WORDS, 3, positions=True, seed=0)


def test_heads_divide_the_width() -> None:
    with pytest.raises(ValueError, match=r"heads must divide width \(16\), got 3"):
        Albert(width=16, heads=3)


@pytest.mark.needs("albert")
def test_weights_are_as_many_as_published(split: SplitModel) -> None:
    vocabulary = tuple(map(str, range(30_000)))
    base = ALBERT.build(Tokens(length=128, vocabulary=vocabulary), 5, positions=True, seed=0)
    assert sum(w.numel() for w in base.lower.parameters()) == 11_683_584  # albert-base-v2 of Lan et al.: 12 million
    assert sum(w.numel() for w in base.upper.parameters()) == 768 * 5 + 5


@pytest.mark.needs("albert")
def test_a_text_is_read_the_same_whatever_its_padding(split: SplitModel) -> None:
    with torch.no_grad():
        longer, shorter = (split.lower(torch.tensor([ids])) for ids in ([2, 3, 4, 0, 0], [2, 3, 4]))
        other = split.lower(torch.tensor([[2, 3, 3]]))
    torch.testing.assert_close(longer, shorter, atol=1e-6, rtol=0)
    assert longer.shape == (1, 16)
    assert longer.abs().max() < 1
    assert (longer - other).abs().max() > 1e-4


@pytest.mark.needs("albert")
def test_a_checkpoint_is_loaded_or_refused(split: SplitModel, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    published = {f"albert.{name.removeprefix('network.')}": value for name, value in split.lower.state_dict().items()}
    save_file(published | {"predictions.bias": torch.zeros(5)}, file)
    given = Albert(width=16, depth=2, heads=2, checkpoint=str(file))
    again = given.build(WORDS, 3, positions=True, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(again.lower.parameters(), split.lower.parameters(), strict=True))
    fewer = Tokens(length=5, vocabulary=("", "?", "a"))
    with pytest.raises(UsageError, match=r"does not fit width=16 and 3 tokens: embeddings\.word_embeddings\.weight"):
        given.build(fewer, 3, positions=True, seed=1)
