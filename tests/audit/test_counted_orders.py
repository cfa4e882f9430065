"""Orders are counted of patches alone, and only for a user's model whose tokens are seen to tell no place."""

from math import lgamma, log
from pathlib import Path
from typing import Any

import pytest
import torch

from privkit.audit.assembled import assemble
from privkit.audit.run import run_audit
from privkit.domains.images.domain import Images
from privkit.settings.resolve import resolve
from privkit.shared.certificate import Certificate
from tests.small import SMALL, generator

PHOTOS = Images(shape=(3, 32, 32))
VIT = """
from dataclasses import dataclass
from typing import ClassVar

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from privkit.models.base import SplitModel


class Lower(nn.Module):
    def __init__(self, image_shape, patch=4, **options):
        super().__init__()
        self.vit = VisionTransformer(
            img_size=image_shape[1:], in_chans=image_shape[0], patch_size=patch, embed_dim=24, depth=2, num_heads=2,
            num_classes=10, global_pool="avg", **options
        )

    def forward(self, images):
        tokens = self.vit.patch_embed(images)
        if self.vit.pos_embed is not None:
            return self.vit.blocks[:1](self.vit._pos_embed(tokens))
        others = (self.vit.cls_token, self.vit.reg_token)  # older timm leaves them out where there are no positions
        given = [other.expand(len(images), -1, -1) for other in others if other is not None]
        return self.vit.blocks[:1](torch.cat([*given, tokens], 1))


class Upper(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(24, 10)

    def forward(self, tokens):
        return self.head(tokens.mean(1))


class Noisy(Lower):
    def forward(self, images):
        tokens = super().forward(images)
        return tokens + torch.randn_like(tokens)


class Cells(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.layer = nn.Conv2d(channels, 24, 3, 2)  # overlaps, and 15 tokens per side divide no 32 pixels

    def forward(self, images):
        return self.layer(images).flatten(2).transpose(1, 2)


def trained(image_shape):
    return Lower(image_shape), Upper()


def registers(image_shape):
    return Lower(image_shape, reg_tokens=4, pos_embed="none"), Upper()


def small(image_shape):
    return Lower(image_shape, 2, pos_embed="none"), Upper()


def without(image_shape):
    return Lower(image_shape, pos_embed="none"), Upper()


def noisy(image_shape):
    return Noisy(image_shape, pos_embed="none"), Upper()


def overlapping(image_shape):
    return Cells(image_shape[0]), Upper()


@dataclass(frozen=True, kw_only=True)
class Liar:
    domain: ClassVar[str] = "images"
    said: bool = True

    def build(self, domain, classes, *, positions, seed):
        torch.manual_seed(0)
        return SplitModel(lower=Lower(domain.shape, class_token=False), upper=Upper(), hides_places=self.said)
"""


@pytest.fixture(autouse=True)
def users_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's networks, in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_vits.py").write_text(VIT)


def certificate(model: str, defense: str = "patch_shuffle") -> Certificate:
    """Of one release of two random images."""
    config = resolve({"model": model, "defense": defense, "dataset": "tiny_digits"})
    edge, _, _ = assemble(config, config.defenses[-1].spec, PHOTOS, 10, 0)
    images = PHOTOS.random(2, generator()).unsqueeze(0)
    with torch.no_grad():
        return edge.eval().release(images, torch.zeros(1, 2, dtype=torch.int64), generator()).receipt.certificate()


def digits_of(orders: int) -> float:
    return lgamma(orders + 1) / log(10)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(("model", "others"), [("my_vits:registers", 5), ("my_vits:without", 1)])
def test_only_patches_are_counted(model: str, others: int) -> None:
    found = certificate(model)
    assert found.kind == "permutation_count"
    assert found.quantities["log10_permutations"] == digits_of(64)
    assert f"{others} of the {64 + others} tokens stand for no patch" in str(found.assumptions)


@pytest.mark.parametrize(
    "model",
    ["my_vits:trained", "my_vits:noisy", "my_vits:overlapping", "my_vits:Liar", "my_vits:Liar:said=false"],
)
def test_a_model_that_may_tell_places_has_no_count(model: str) -> None:
    """Positions under a class token, noise, a grid that cannot be moved, and a flag that nobody else has seen."""
    found = certificate(model)
    assert found.kind == "nothing"
    assert not found.quantities
    assert "assumes that no token reveals its place, which is not shown for this model" in found.statement


def test_a_batch_with_class_tokens_is_not_counted() -> None:
    found = certificate("my_vits:without", "batch_shuffle")
    assert found.kind == "nothing"
    assert "1 of the 65 tokens stand for no patch" in found.statement


def test_what_is_permuted_before_the_model_needs_no_tokens() -> None:
    found = certificate("my_vits:trained", "spectral_shuffle:where=image,patch=4")
    assert found.quantities["log10_permutations"] == digits_of(64)


def test_a_chain_does_not_count_either() -> None:
    for model, counted in (("my_vits:without", True), ("my_vits:trained", False)):
        found = certificate(model, "gaussian_noise:sigma=2,clip=5+patch_shuffle")
        assert found.kind == "differential_privacy"
        assert ("orderings" in str(found)) is ("log10_permutations" in found.quantities) is counted


def test_privkits_own_models_keep_their_counts() -> None:
    """T2T's patches overlap, which no grid shows: that it adds no positions is its own code."""
    for model, tokens in (("vit_tiny", 64), ("t2t_vit:width=48,depth=1,heads=3", 64), ("pit_tiny", 225)):
        assert certificate(model).quantities["log10_permutations"] == digits_of(tokens)


@pytest.mark.slow
def test_a_row_says_it() -> None:
    settings: dict[str, Any] = {**SMALL, "budget": "smoke:epochs=1", "attack": "mid_grey", "defense": "patch_shuffle"}
    row = run_audit(**settings, model="my_vits:small", out=Path("run")).rows[-1]
    assert row.certificate is not None
    assert row.certificate.quantities["log10_permutations"] == digits_of(16)
