"""Public mixing is linear: several passes give each client's smashed data back, and hidden coins give nothing."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import NotApplicable, View
from privkit.attacks.goals.reconstruct import ImageObservation, Reconstruction
from privkit.attacks.inversion.black_box import BlackBox
from privkit.attacks.inversion.linear_mixtures import Mixtures, fitting_noise
from privkit.attacks.inversion.unmix import Unmix, _apart, _must_share_ratios, with_ratios
from privkit.defenses.base import Defense
from privkit.defenses.cutmix import Mixup, RandomCutMix, VanillaCutMix
from privkit.defenses.cutout import RandomCutout
from privkit.defenses.dp_cutmixsl import DpCutMixSl, DpMixSl
from privkit.defenses.noise import GaussianNoise
from privkit.defenses.none import NoDefense
from privkit.models.convolutional import LENET5
from privkit.training import Clients, SplitProtocol
from privkit.wire.channel import black_box_query, record_rounds
from tests.attacks.inversion.mixing import BATCH, CLIENTS, FLOOR, OWN, VICTIMS, clients, passes, seen, smashed
from tests.attacks.sessions import Killed, Session
from tests.small import IMAGES


def run(defense: Defense, attack: Unmix | BlackBox, session: Any = None) -> Reconstruction:
    edge = clients(defense)
    views = passes(edge, attack.mounting.passes)
    return attack.run(seen(edge, views), Generator().manual_seed(0), session)


def error(defense: Defense, result: Reconstruction) -> float:
    members = record_rounds(clients(defense), VICTIMS, batch_size=BATCH, seed=1).members
    return (result.images - VICTIMS.x[members])[members >= 0].square().mean().item()


@pytest.mark.parametrize(
    "defense", [RandomCutMix(group=3), VanillaCutMix(), Mixup(), Mixup(group=4), RandomCutout(), NoDefense()], ids=repr
)
def test_enough_passes_give_the_smashed_data_of_each_client_back(defense: Defense) -> None:
    edge = clients(defense)
    mixtures = Mixtures.of(passes(edge, 24)[::2])
    found, explained = mixtures.solved(mixtures.typical(), 1e-9)
    assert explained.min() > 0.999
    torch.testing.assert_close(found, smashed(edge), rtol=0, atol=1e-4)


def test_maps_and_vectors_are_unmixed_as_well() -> None:
    images = torch.rand(2 * BATCH, 1, 28, 28, generator=Generator().manual_seed(0))
    lower = LENET5.build(replace(IMAGES, shape=(1, 28, 28)), 10, positions=True, seed=0).lower
    for segment, defense in ((lower, RandomCutMix(patch=2)), (nn.Sequential(lower, nn.Flatten()), Mixup())):
        edge = Clients.build(
            segment, defense, replace(IMAGES, shape=(1, 28, 28)), classes=10, seed=0, protocol=SplitProtocol(clients=2)
        )
        draws = Generator().manual_seed(0)
        mixtures = Mixtures.of([black_box_query(edge)(images, draws).view for _ in range(12)])
        found, explained = mixtures.solved(mixtures.typical(), 1e-9)
        with torch.no_grad():
            wanted = edge.eval().lowers.copy(0)(images)
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)
        assert explained.min() > 0.999


def test_a_cell_that_never_crossed_is_the_mean_and_nothing_is_known_of_it() -> None:
    one = Mixtures.of(passes(edge := clients(RandomCutMix()), 1)[:1])
    typical = one.typical()
    found, explained = one.solved(typical, 1e-9)
    known = explained > 0.5
    assert 0.2 < known.double().mean() < 0.8
    torch.testing.assert_close(found[known], smashed(edge)[known], rtol=0, atol=1e-4)
    torch.testing.assert_close(found[~known], typical.float().expand(len(found), -1, -1)[~known])


def test_the_decoder_is_told_which_cells_crossed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one pass: a cell that crossed is solved and has weight 1, and the others have none."""
    given: list[View] = []

    def run(attack: BlackBox, observation: ImageObservation, *rest: Any) -> Reconstruction:
        given.extend(observation.views)
        return Reconstruction(images=torch.zeros(sum(len(view.smashed) for view in observation.views), 1, 8, 8))

    monkeypatch.setattr(BlackBox, "run", run)
    edge = clients(RandomCutMix())
    found = Unmix(passes=1).run(seen(edge, passes(edge, 1)), Generator().manual_seed(0))
    assert len(found.images) == 2 * 3 * BATCH * 2  # seats of two rounds of three messages, one of them half empty
    assert given[0].weights is not None
    known = given[0].weights.squeeze(1) > 0.99
    assert 0.2 < known.double().mean() < 0.8
    assert given[0].weights.squeeze(1)[~known].max() < 0.01
    torch.testing.assert_close(given[0].smashed[known], smashed(edge)[known], rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    "defense",
    [
        DpMixSl(sigma=0.3, sigma_labels=None, bound=None),
        DpCutMixSl(sigma=0.3, sigma_labels=None, bound=None),
        GaussianNoise(sigma=0.3, clip=None),
    ],
    ids=["dp_mixsl", "dp_cutmixsl", "gaussian_noise"],
)
def test_noise_is_averaged(defense: Defense) -> None:
    edge = clients(defense)
    views, wrong = passes(edge, 33)[::2], []
    for count in (8, 32):
        typical, noise, _ = fitting_noise(views[:count], views[-1])
        found, _ = Mixtures.of(views[:count]).solved(typical, noise)
        wrong.append((found - smashed(edge)).square().mean().item())
    assert wrong[1] < 0.45 * wrong[0]


@pytest.mark.slow
def test_several_passes_show_what_one_does_not() -> None:
    defense = RandomCutMix()
    one = error(defense, run(defense, BlackBox(epochs=25)))
    eight = error(defense, run(defense, Unmix(epochs=25)))
    assert eight < 0.6 * one
    assert eight < 0.5 * FLOOR


def test_is_at_the_floor_where_noise_covers_all() -> None:
    defense = DpMixSl(sigma=300, sigma_labels=None, bound=None)
    assert error(defense, run(defense, Unmix(epochs=3))) > 0.97 * FLOOR


@pytest.mark.parametrize("group", [2, 3])
def test_secret_ratios_are_found_from_the_passes_alone(group: int) -> None:
    edge = clients(Mixup(group=group, published=False))
    mixtures = Mixtures.of(with_ratios(passes(edge, 24)[::2], CLIENTS))
    found = mixtures.solved(mixtures.typical(), 1e-9)[0].unflatten(0, (CLIENTS, BATCH))
    wanted = smashed(edge).unflatten(0, (CLIENTS, BATCH))
    errors = (found.unsqueeze(1) - wanted).square().flatten(2).mean(2)
    assert sorted(errors.argmin(1).tolist()) == list(range(CLIENTS))
    assert errors.amin(1).max() < 1e-3 * wanted.var()


@pytest.mark.slow
def test_an_attack_on_secret_ratios_trains_on_its_own_images() -> None:
    defense = Mixup(published=False)
    edge = clients(defense)
    seen_views = record_rounds(edge, VICTIMS, batch_size=BATCH, seed=1, passes=8)
    result = Unmix(epochs=2).run(seen(edge, seen_views.views), Generator().manual_seed(0))
    assert result.images.shape == (2 * 3 * BATCH * 2, 1, 8, 8)
    public = run(Mixup(), Unmix(epochs=2))
    assert result.curve[-1] < 1.05 * public.curve[-1]  # the ratios were no secret


@pytest.mark.slow
def test_goes_on_after_a_kill_bit_for_bit() -> None:
    defense, attack = Mixup(), Unmix(passes=4, epochs=3)
    whole = run(defense, attack)
    assert torch.equal(run(defense, attack).images, whole.images)
    session = Session(dies_after=2)
    with pytest.raises(Killed):
        run(defense, attack, session)
    resumed = run(defense, attack, Session(state=session.state))
    assert torch.equal(resumed.images, whole.images)
    assert resumed.curve == whole.curve


def test_what_cannot_be_solved_is_refused() -> None:
    with pytest.raises(NotApplicable, match="at least 10 messages, got 6: record at least 4 passes"):
        run(Mixup(published=False), Unmix(passes=2, epochs=1))
    with pytest.raises(
        NotApplicable, match=r"only 1 of 2 clients' ratios were found from 8 passes: .* unmix:passes=16"
    ):
        _apart([np.ones(3)] * 3, 2, 8)
    with pytest.raises(NotApplicable, match="differ from position to position, as those of masks do"):
        run(RandomCutMix(published=False), Unmix(passes=8, epochs=1))
    with pytest.raises(NotApplicable, match="16 positions, but a row is"):
        run(RandomCutMix(level="input"), Unmix(passes=2, epochs=1))
    edge = clients(Mixup())
    with pytest.raises(NotApplicable, match="4 views are not a multiple of 3"):
        Unmix(passes=3, epochs=1).run(seen(edge, passes(edge, 2)), Generator())
    few = replace(seen(edge, passes(edge, 2)), auxiliary=OWN.x[:19])
    with pytest.raises(NotApplicable, match="20 images"):
        Unmix(passes=2, epochs=1).run(few, Generator())


def mixed_messages(own_ratios: bool, noise: float, seed: int) -> Tensor:
    """24 messages [24, 4, 4, 16] of 2 of 5 clients each, with one ratio per message or one for each position."""
    draws = Generator().manual_seed(seed)
    clients = torch.randn(5, 4, 4, 16, generator=draws) + 0.5
    pairs = torch.rand(24, 5, generator=draws).argsort(1)[:, :2]
    ratio = torch.rand(24, 4 if own_ratios else 1, generator=draws)
    ratio = (ratio > 0.5).float() if own_ratios else ratio
    ratio = ratio[:, None, :, None]
    messages = ratio * clients[pairs[:, 0]] + (1 - ratio) * clients[pairs[:, 1]]
    return messages + noise * torch.randn(messages.shape, generator=draws)


def test_noise_is_no_mask_and_masks_are_told_from_ratios_where_noise_is_small() -> None:
    for seed in range(20):
        for noise in (0.0, 0.1, 1.0, 2.0):
            _must_share_ratios(mixed_messages(False, noise, seed), 5)
        for noise in (0.0, 0.1):
            with pytest.raises(NotApplicable, match="differ from position to position"):
                _must_share_ratios(mixed_messages(True, noise, seed), 5)


def test_the_server_knows_whose_rows_it_gets_if_the_coins_are_public() -> None:
    view = passes(clients(RandomCutMix()), 1)[0]
    assert view.clients is not None
    assert view.clients.shape == (3 * BATCH, 2)
    assert sorted(view.clients[::BATCH].flatten().tolist()) == [-1, 0, 1, 2, 3, 4]
    assert passes(clients(RandomCutMix(published=False)), 1)[0].clients is None
