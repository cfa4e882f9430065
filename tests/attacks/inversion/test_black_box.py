"""The black-box decoder wins where it must, fails where it must, and goes on after a kill."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import AttackDiverged, NotApplicable, View, lacking
from privkit.attacks.goals.reconstruct import ImageObservation, Reconstruction
from privkit.attacks.inversion.black_box import BlackBox
from privkit.attacks.inversion.decoders import DECODERS
from privkit.attacks.inversion.decoders.mae import MaeDecoder
from privkit.attacks.inversion.floors import MeanImage, MidGrey
from privkit.attacks.patches import Geometry, as_tokens, patchify, sincos_positions, unpatchify
from tests.attacks.sessions import Killed, Session
from tests.attacks.victims import answering
from tests.small import digits

BATCH = 20


IMAGES = digits(700).x
VICTIMS, AUXILIARY = IMAGES[:100], IMAGES[100:]
FEW = AUXILIARY[:120]
"""Own images enough for what is the same bit for bit, however well it guesses."""


def identity(images: Tensor, draws: Generator) -> Tensor:
    return patchify(images, 2)


def noise(images: Tensor, draws: Generator) -> Tensor:
    return torch.randn((len(images), 16, 4), generator=draws)


def knowledge(release: Any = identity, auxiliary: Tensor | None = AUXILIARY) -> ImageObservation:
    return ImageObservation(image_shape=(1, 8, 8), batch_size=BATCH, auxiliary=auxiliary, query=answering(release))


def views(query: Any = identity) -> list[View]:
    draws = Generator().manual_seed(9)
    return [View(round=i, smashed=query(part, draws)) for i, part in enumerate(VICTIMS.split(BATCH))]


def run(attack: BlackBox, query: Any = identity, session: Any = None, auxiliary: Tensor = AUXILIARY) -> Reconstruction:
    known = replace(knowledge(query, auxiliary), views=views(query))
    return attack.run(known, Generator().manual_seed(0), session)


def error(result: Reconstruction) -> float:
    return (result.images - VICTIMS).square().mean().item()


FLOOR = error(MeanImage().run(replace(knowledge(), views=views()), Generator()))


# Decoder -> epochs and the share of the floor's error that it must get below. The released decoder's blocks are as wide
# as a patch has pixels, 4 here, so it learns slowly; for those that ignore order the identity is a shuffle like any
# other, and pieces of 2×2 pixels of a whole message look much alike.
WINS: dict[str, tuple[int, float]] = {
    "mae": (6, 0.1),
    "released": (25, 0.5),
    "set": (25, 0.65),
    "message": (10, 0.85),
    "convolutions": (12, 0.3),
    "autoencoder": (6, 0.3),
    "unet": (6, 0.1),
    "pix2pix": (6, 0.1),
}


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("decoder", sorted(DECODERS))
def test_wins_on_the_identity(decoder: Any) -> None:
    epochs, share = WINS[decoder]
    assert error(run(BlackBox(decoder=decoder, epochs=epochs))) < share * FLOOR


@pytest.mark.parametrize(
    "decoder",
    [name if name == "convolutions" else pytest.param(name, marks=pytest.mark.slow) for name in sorted(DECODERS)],
)
def test_is_at_the_floor_on_noise(decoder: Any) -> None:
    assert error(run(BlackBox(decoder=decoder, epochs=1 if decoder == "message" else 6), noise)) > 0.97 * FLOOR


@pytest.mark.slow
def test_beats_its_own_untrained_start() -> None:
    assert error(run(BlackBox(epochs=2))) < 0.5 * error(run(BlackBox(epochs=0)))


@pytest.mark.parametrize("augment", ["none", "crop", "crop_flip"])
def test_same_seed_same_bits(augment: Any) -> None:
    attack = BlackBox(epochs=1, augment=augment)
    first, again = run(attack, auxiliary=FEW), run(attack, auxiliary=FEW)
    assert torch.equal(first.images, again.images)
    assert first.curve == again.curve


def test_leaves_the_global_generator_alone() -> None:
    state = torch.random.get_rng_state()
    run(BlackBox(epochs=1), auxiliary=FEW)
    assert torch.equal(torch.random.get_rng_state(), state)


def _bytes(state: dict[str, Any]) -> Any:
    import io

    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return buffer


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("dies_after", [3, 1])
def test_goes_on_after_a_kill_bit_for_bit(dies_after: int) -> None:
    attack = BlackBox(epochs=4, augment="crop")
    killed = Session(dies_after=dies_after)
    with pytest.raises(Killed):
        run(attack, session=killed, auxiliary=FEW)
    resumed = run(attack, session=Session(state=killed.state), auxiliary=FEW)
    straight = run(attack, auxiliary=FEW)
    assert torch.equal(resumed.images, straight.images)
    assert resumed.curve == straight.curve


class Keeping(Session):
    """Saves seldom, and keeps in any case what it is told to."""

    kept: dict[str, Any] | None = None

    def save(self, state: dict[str, Any]) -> None:
        pass

    def keep(self, state: dict[str, Any]) -> None:
        self.kept = torch.load(_bytes(state), weights_only=True)


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("factor", [1e6, float("nan"), float("inf")])
def test_a_training_that_diverges_stops_and_keeps_its_last_good_state(
    factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finite explosion, too, which would look like a poor guess once it is cut to [0, 1]."""
    drawn, messages, calls = MaeDecoder.forward, (len(FEW) - len(FEW) // 10) // BATCH, [0]

    def forward(self: MaeDecoder, release: Tensor) -> Tensor:
        calls[0] += self.training
        return drawn(self, release) * (factor if calls[0] > 2 * messages else 1.0)

    monkeypatch.setattr(MaeDecoder, "forward", forward)
    session = Keeping()
    with pytest.raises(AttackDiverged, match="after epoch 3"):
        run(BlackBox(epochs=4), session=session, auxiliary=FEW)
    assert session.kept is not None
    first, second = session.kept["0"], session.kept["1"]
    assert (len(first["curve"]), len(second["curve"])) == (2, 0)
    assert all(bool(weight.isfinite().all()) for weight in second["training"]["network"].values())


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_releases_that_hold_no_numbers(broken: float) -> None:
    seen = [replace(view, smashed=view.smashed * broken) for view in views()]
    with pytest.raises(NotApplicable, match="NaN or infinity"):
        BlackBox(epochs=1).run(replace(knowledge(), views=seen), Generator())
    for nothing in ([], [replace(view, smashed=view.smashed[..., :0]) for view in views()]):
        with pytest.raises(NotApplicable, match="nothing to attack"):
            BlackBox(epochs=1).run(replace(knowledge(), views=nothing), Generator())


def test_says_what_it_lacks() -> None:
    blind = ImageObservation(image_shape=(1, 8, 8), batch_size=BATCH)
    assert lacking(BlackBox(), blind) == ["auxiliary", "query"]
    with pytest.raises(NotApplicable, match="auxiliary and query"):
        BlackBox(epochs=1).run(replace(blind, views=views()), Generator())


def test_auxiliary_images_of_another_shape_or_too_few() -> None:
    with pytest.raises(NotApplicable, match="same shape"):
        BlackBox(epochs=1).run(replace(knowledge(auxiliary=torch.rand(90, 3, 8, 8)), views=views()), Generator())
    with pytest.raises(NotApplicable, match=r"as large as the victim's.*at least 40 auxiliary records, got 39"):
        BlackBox(epochs=1).run(replace(knowledge(auxiliary=torch.rand(39, 1, 8, 8)), views=views()), Generator())


@pytest.mark.parametrize("count", [2 * BATCH, 7 * BATCH + 3, 31 * BATCH + 3])
def test_every_message_is_as_large_as_the_victims_also_in_validation(count: int) -> None:
    """A defense that mixes a batch mixes a smaller one less, and refuses a batch of one."""
    sizes: set[int] = set()

    def query(images: Tensor, draws: Generator) -> Tensor:
        sizes.add(len(images))
        return identity(images, draws)

    auxiliary = IMAGES.repeat(2, 1, 1, 1)[:count]
    result = BlackBox(epochs=1).run(replace(knowledge(query, auxiliary), views=views()), Generator().manual_seed(0))
    assert len(result.curve) == 1
    assert sizes == {BATCH}


def test_draws_of_the_clients_own_modules_are_seeded() -> None:
    """A lower segment that draws from the global generator (dropout that is never off) gives the same bits again."""

    def query(images: Tensor, draws: Generator) -> Tensor:
        return nn.functional.dropout(identity(images, draws), 0.5)

    message = views()
    state = torch.random.get_rng_state()
    straight = BlackBox(epochs=3).run(replace(knowledge(query, FEW), views=message), Generator().manual_seed(0))
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.rand(5)
    killed = Session(dies_after=1)
    with pytest.raises(Killed):
        BlackBox(epochs=3).run(replace(knowledge(query, FEW), views=message), Generator().manual_seed(0), killed)
    torch.rand(5)
    resumed = BlackBox(epochs=3).run(
        replace(knowledge(query, FEW), views=message), Generator().manual_seed(0), Session(state=killed.state)
    )
    assert torch.equal(resumed.images, straight.images)
    assert resumed.curve == straight.curve


@pytest.mark.parametrize("dim", [8, 65, 96, 112, 200, 208, 368, 1000])
def test_every_token_size_has_a_decoder(dim: int) -> None:
    tokens = torch.zeros(1, 16, dim)
    decoder = MaeDecoder(Geometry.of(tokens, (1, 8, 8)), depth=1)
    assert decoder(tokens).shape == (1, 1, 8, 8)


def test_tokens_that_are_no_grid() -> None:
    with pytest.raises(NotApplicable, match="not a square grid"):
        BlackBox(epochs=1).run(replace(knowledge(), views=[View(round=0, smashed=torch.rand(20, 6, 4))]), Generator())
    released = BlackBox(decoder="released", epochs=1)
    with pytest.raises(NotApplicable, match="needs tokens"):
        released.run(replace(knowledge(), views=[View(round=0, smashed=torch.rand(20, 5))]), Generator())


def test_feature_maps_are_decoded_too() -> None:
    def maps(images: Tensor, draws: Generator) -> Tensor:
        return identity(images, draws).transpose(1, 2).unflatten(2, (4, 4))

    attack = BlackBox(decoder="mae", epochs=1)
    assert torch.equal(run(attack, maps, auxiliary=FEW).images, run(attack, auxiliary=FEW).images)


def test_output_lies_in_the_unit_range() -> None:
    low, high = run(BlackBox(epochs=1)).images.aminmax()
    assert low >= 0
    assert high <= 1


def test_floors() -> None:
    grey = MidGrey().run(replace(knowledge(auxiliary=None), views=views()), Generator()).images
    assert grey.shape == VICTIMS.shape
    assert (grey == 0.5).all()
    mean = MeanImage().run(replace(knowledge(), views=views()), Generator()).images
    torch.testing.assert_close(mean[3], AUXILIARY.mean(0))
    assert (grey - VICTIMS).square().mean() > FLOOR
    with pytest.raises(NotApplicable):
        MeanImage().run(replace(knowledge(auxiliary=None), views=views()), Generator())


def test_bad_specifications() -> None:
    for bad in (
        {"epochs": -1},
        {"learning_rate": 0.0},
        {"learning_rate": float("nan")},
        {"decoder": "gan"},
        {"width": 0},
        {"width": -16},
        {"width": 7},
        {"depth": 0},
        {"depth": -1},
        {"decoder": "released", "width": 0},
    ):
        with pytest.raises(ValueError, match="must be"):
            BlackBox(**bad)  # type: ignore[arg-type]
    for width in (0, -16, 50):
        with pytest.raises(ValueError, match="multiple of 16 >= 16"):
            MaeDecoder(Geometry.of(torch.zeros(1, 16, 96), (1, 28, 28)), width=width)
    with pytest.raises(ValueError, match="no prediction head"):
        run(BlackBox(epochs=1, decoder="released", width=96))
    with pytest.raises(ValueError, match="budget's"):
        run(replace(BlackBox(), epochs=None))


def test_geometry_reads_tokens_and_maps() -> None:
    assert Geometry.of(torch.zeros(1, 196, 768), (3, 224, 224)).patch == 16
    maps = torch.zeros(1, 8, 4, 4)
    assert Geometry.of(maps, (1, 28, 28)) == Geometry(token_dim=8, tokens=16, patch=7, image_shape=(1, 28, 28))
    assert torch.equal(as_tokens(maps + torch.arange(16.0).view(4, 4))[0, :, 0], torch.arange(16.0))


def test_patches_are_timms() -> None:
    """A patch embedding with identity weights must give the same patches, row by row."""
    from timm.layers.patch_embed import PatchEmbed

    images = torch.rand(2, 3, 8, 8)
    embed = PatchEmbed(8, 4, 3, 48, bias=False)
    torch.nn.init.zeros_(embed.proj.weight)
    with torch.no_grad():
        for out in range(48):
            row, column, channel = out // 12, out // 3 % 4, out % 3
            embed.proj.weight[out, channel, row, column] = 1
        torch.testing.assert_close(embed(images), patchify(images, 4))
    assert torch.equal(unpatchify(patchify(images, 4), 4, (3, 8, 8)), images)


def test_sincos_positions_tell_places_apart() -> None:
    positions = sincos_positions(14, 512)
    assert positions.shape == (196, 512)
    distances = torch.cdist(positions, positions) + 10 * torch.eye(196)
    assert distances.min() > 0.5
    neighbour, far = distances[0, 1], distances[0, 13]
    assert neighbour < far
