"""A class token in front of the patches' tokens stops no attack, and one that tells something is listened to."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import View
from privkit.attacks.goals.reconstruct import ImageAttack, ImageObservation, Reconstruction
from privkit.attacks.hijack.fsha import FSHA
from privkit.attacks.inversion.adaptive import Adaptive
from privkit.attacks.inversion.black_box import BlackBox
from privkit.attacks.inversion.decoders import DECODERS, DecoderName, build_decoder
from privkit.attacks.inversion.jigsaw_white_box import JigsawWhiteBox
from privkit.attacks.inversion.sara import Sara
from privkit.attacks.inversion.sdar import SDAR
from privkit.attacks.inversion.simulator_networks import Simulator
from privkit.attacks.inversion.unsplit import UnSplit
from privkit.attacks.inversion.white_box import WhiteBox
from privkit.attacks.order.drag_reorder import DragReorder
from privkit.attacks.order.jigsaw import Jigsaw
from privkit.attacks.patches import Geometry, class_tokens, patch_tokens, patchify
from tests.attacks.victims import answering
from tests.small import digits

SPLIT = digits(280)
VICTIMS, AUXILIARY = SPLIT.x[:40], SPLIT.x[40:]
FLOOR = (AUXILIARY.mean(0) - VICTIMS).square().mean().item()
BATCH = 20
LISTENERS = ("mae", "released")


class Fronted(nn.Module):
    """Four tokens of 4×4 pixels, and in front of them one that sees the whole image."""

    def __init__(self, fronted: bool = True) -> None:
        super().__init__()
        self.embed, self.fronted = nn.Linear(16, 24), fronted
        self.embed.weight.data = torch.randn(24, 16, generator=Generator().manual_seed(3)) / 4
        self.embed.bias.data = torch.zeros(24)
        self.requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        tokens: Tensor = self.embed(patchify(images, 4))
        return torch.cat([tokens.mean(1, keepdim=True), tokens], 1) if self.fronted else tokens


def run(attack: ImageAttack, sent: nn.Module, passes: int = 1, **also: Any) -> Reconstruction:
    query = answering(lambda images, draws: sent(images))
    with torch.no_grad():
        views = [View(round=i, smashed=sent(part)) for i, part in enumerate(passes * VICTIMS.split(BATCH))]
    observation = ImageObservation(
        image_shape=(1, 8, 8), batch_size=BATCH, auxiliary=AUXILIARY, views=views, query=query, **also
    )
    return attack.run(observation, Generator().manual_seed(0))


def error(result: Reconstruction) -> float:
    return (result.images - VICTIMS).square().mean().item()


def test_a_class_token_is_one_more_than_a_square_of_patches() -> None:
    assert [class_tokens(torch.zeros(1, count, 2)) for count in (1, 2, 4, 5, 64, 65, 197, 198)] == [
        *(0, 0, 0, 1),
        *(0, 1, 1, 0),
    ]
    assert class_tokens(torch.zeros(1, 17, 4, 4)) == class_tokens(torch.zeros(1, 17)) == 0
    fronted, alone = (Fronted(front)(VICTIMS) for front in (True, False))
    assert torch.equal(patch_tokens(fronted), patch_tokens(alone))
    seen, without = Geometry.of(fronted, (1, 8, 8)), Geometry.of(alone, (1, 8, 8))
    assert seen == replace(without, class_tokens=1)


@pytest.mark.parametrize("name", DECODERS)
def test_every_decoder_reads_a_release_with_a_class_token(name: DecoderName) -> None:
    """Those that set it aside draw the same bits as without one; the others draw something else if it changes."""

    def drawn(release: Tensor) -> Tensor:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            decoder = build_decoder(name, release, (1, 8, 8)).eval()
            for weight in decoder.parameters():  # heads that start at zero would draw nothing
                weight.add_(0.05 * torch.randn(weight.shape))
            return decoder(release)

    with torch.no_grad():
        fronted, alone = (Fronted(front)(VICTIMS) for front in (True, False))
    other = torch.cat([1 + fronted[:, :1], fronted[:, 1:]], 1)
    assert drawn(fronted).shape == VICTIMS.shape
    if name in LISTENERS:
        assert not torch.allclose(drawn(fronted), drawn(other))
    else:
        assert torch.equal(drawn(fronted), drawn(alone))


def test_a_class_token_that_holds_the_image_gives_it_away() -> None:
    """The patches' own tokens are noise: who does not listen to the class token stays at the mean image."""

    def told(images: Tensor, draws: Generator) -> Tensor:
        pictures = 4 * (images - 0.5).flatten(1).unsqueeze(1)
        return torch.cat([pictures, torch.randn(len(images), 4, 64, generator=draws)], 1)

    draws = Generator().manual_seed(1)
    views = [View(round=i, smashed=told(part, draws)) for i, part in enumerate(VICTIMS.split(BATCH))]
    seen = ImageObservation(
        image_shape=(1, 8, 8), batch_size=BATCH, auxiliary=AUXILIARY, views=views, query=answering(told)
    )
    for attack, least, most in (
        (BlackBox(decoder="mae", epochs=12, depth=1), 0.0, 0.85),
        (BlackBox(decoder="convolutions", epochs=12, width=4), 0.95, 2.0),
    ):
        assert least * FLOOR <= error(attack.run(seen, Generator().manual_seed(0))) < most * FLOOR, attack.decoder


@pytest.mark.slow
@pytest.mark.parametrize("combine", ["average", "concatenate"])
def test_passes_are_put_together_with_their_class_tokens(combine: Any) -> None:
    assert error(run(Adaptive(passes=2, combine=combine, epochs=12), Fronted(), passes=2)) < 0.8 * FLOOR


@pytest.mark.parametrize("combine", ["pool", "intersect", "as_released"])
def test_where_tokens_have_no_place_a_class_token_is_set_aside(combine: Any) -> None:
    attack = Adaptive(passes=2, combine=combine, epochs=1)
    fronted, alone = (run(attack, Fronted(front), passes=2).images for front in (True, False))
    assert torch.equal(fronted, alone)


PUZZLES = (
    Jigsaw(epochs=1, kicks=2),
    JigsawWhiteBox(pieces_epochs=1, kicks=2, epochs=1),
    DragReorder(epochs=1),
    Sara(predictor_epochs=1, epochs=1),
)


@pytest.mark.parametrize("attack", PUZZLES, ids=lambda attack: attack.name)
def test_a_puzzle_is_of_patches_alone(attack: Any) -> None:
    fronted, bare = (run(attack, sent, lower=sent) for sent in (Fronted(True), Fronted(False)))
    assert fronted.permutation is not None
    assert bare.permutation is not None
    assert torch.equal(fronted.permutation.source, bare.permutation.source)
    if attack.name == "jigsaw_white_box":  # whose second half matches the class token, too
        assert error(fronted) < 0.2 * FLOOR
    else:
        assert torch.equal(fronted.images, bare.images)


def test_a_known_segment_that_makes_a_class_token_is_inverted() -> None:
    lower = Fronted()
    assert error(run(WhiteBox(epochs=2), lower, lower=lower)) < 0.1 * FLOOR
    assert run(UnSplit(epochs=1), lower, lower=lower).images.shape == VICTIMS.shape


def test_sdars_simulator_makes_one_like_those_recorded() -> None:
    rows = Fronted()(AUXILIARY).detach()
    made = Simulator(rows, (1, 8, 8), width=4)(AUXILIARY)
    assert made.shape == rows.shape
    constant = rows.clone()
    constant[:, 0] = 7.0
    torch.testing.assert_close(Simulator(constant, (1, 8, 8), width=4)(AUXILIARY)[:, 0], constant[:, 0])
    torch.manual_seed(0)
    upper = nn.Sequential(nn.Flatten(), nn.Linear(5 * 24, 10))
    result = run(SDAR(epochs=1, width=4), Fronted(), auxiliary_labels=SPLIT.y[40:], upper=upper)
    assert result.images.shape == VICTIMS.shape


@pytest.mark.usefixtures("ten")
def test_a_hijack_leads_the_tokens_of_patches(hijack: Any) -> None:
    """The same bits with a class token in front, whose gradient is 0."""

    class Tokens(hijack.small):  # type: ignore[misc, name-defined]
        def __init__(self, front: int) -> None:
            super().__init__("tokens")
            self.front = front

        def forward(self, x: Tensor) -> Tensor:
            tokens = super().forward(x)
            return torch.cat([tokens.mean(1, keepdim=True)] * self.front + [tokens], 1)

    attack = FSHA(epochs=1, width=2, blocks=1, end="linear")
    bare, fronted = (hijack.attacked(attack, hijack.client(partial(Tokens, front))).images for front in (0, 1))
    assert torch.equal(bare, fronted)
