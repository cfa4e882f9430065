"""Mixup and the CutMixes against the laws that their accounting needs."""

from dataclasses import replace
from math import comb

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import betabinom, chisquare, kstest
from torch import Tensor

from privkit.defenses.base import ReleaseCount
from privkit.defenses.cutmix import Mixup, RandomCutMix, ShuffledCutMix, VanillaCutMix
from privkit.defenses.masks import spread
from privkit.defenses.mixing import dirichlet_counts, dirichlet_ratios, exclusive_masks, mix, mix_labels
from tests.small import generator

INF = float("inf")
CUTMIXES = [RandomCutMix(), VanillaCutMix(), ShuffledCutMix()]
MIXERS = [Mixup(), *CUTMIXES]
Mixer = Mixup | RandomCutMix
each_mixer = pytest.mark.parametrize("mixer", MIXERS, ids=lambda d: d.name)
each_cutmix = pytest.mark.parametrize("mixer", CUTMIXES, ids=lambda d: d.name)


def group_of(*shape: int, classes: int = 5, seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Smashed data and one-hot labels of groups."""
    draws = generator(seed)
    labels = torch.randint(classes, shape[:3], generator=draws)
    return torch.rand(shape, generator=draws, dtype=dtype), torch.nn.functional.one_hot(labels, classes).to(dtype)


def seats(groups: int, k: int, seed: int) -> Tensor:
    """Random seats, at least one of a group taken."""
    present = torch.rand(groups, k, generator=generator(seed)) < 0.6
    present[torch.arange(groups), torch.randint(k, (groups,), generator=generator(seed))] = True
    return present


@given(
    groups=st.integers(1, 4),
    k=st.integers(1, 6),
    total=st.integers(1, 40),
    concentration=st.sampled_from([1e-6, 0.1, 2.0, 1e9, INF]),
    seed=st.integers(0, 2**32),
)
def test_masks_are_exclusive_and_exhaustive(groups: int, k: int, total: int, concentration: float, seed: int) -> None:
    present, draws = seats(groups, k, seed), generator(seed)
    ratios = dirichlet_ratios(present, concentration, draws)
    counts = dirichlet_counts(present, total, concentration, draws)
    masks = exclusive_masks(counts, draws, positions=total)
    assert ratios.dtype == torch.float64
    assert counts.dtype == torch.int64
    assert (masks.sum(1) == 1).all()
    assert torch.equal(masks.sum(2), counts)
    assert (counts.sum(1) == total).all()
    assert (counts >= 0).all()
    assert torch.allclose(ratios.sum(1), torch.ones(groups).double(), rtol=0, atol=1e-12)
    assert not ratios[~present].any()
    assert not counts[~present].any()
    if concentration == INF:
        taken = present.sum(1, keepdim=True)
        assert ((counts - total / taken).abs()[present] < 1).all()
        assert torch.equal(ratios, present / taken.double())


@given(
    k=st.integers(1, 5),
    side=st.integers(1, 7),
    concentration=st.sampled_from([1e-6, 0.1, 2.0, INF]),
    seed=st.integers(0, 2**32),
)
def test_boxes_of_k_clients_are_exclusive_too(k: int, side: int, concentration: float, seed: int) -> None:
    present = seats(3, k, seed)
    coins = generator(seed)
    masks = VanillaCutMix(group=k, concentration=concentration).draw(
        torch.zeros(3, k, 1, side * side, 1), present, coins, coins
    )
    assert (masks.sum(1) == 1).all()
    assert not masks[~present].any()


@pytest.mark.parametrize(("k", "concentration"), [(2, 2.0), (3, 6.0), (4, 0.3)])
def test_ratios_have_beta_marginals(k: int, concentration: float) -> None:
    ratios = dirichlet_ratios(torch.ones(4_000, k, dtype=torch.bool), concentration, generator()).numpy()
    for member in range(k):
        assert kstest(ratios[:, member], "beta", args=(concentration, (k - 1) * concentration)).pvalue > 1e-4


def test_ratios_of_the_taken_seats_have_their_law() -> None:
    present = torch.tensor([[True, False, True, False, True]]).expand(4_000, 5)
    ratios = dirichlet_ratios(present, 2.0, generator()).numpy()
    assert kstest(ratios[:, 2], "beta", args=(2.0, 4.0)).pvalue > 1e-4
    assert kstest(ratios[:, 2], "beta", args=(2.0, 8.0)).pvalue < 1e-4  # five seats would be another law


@pytest.mark.parametrize(("k", "concentration", "total"), [(2, 2.0, 16), (3, 6.0, 16), (4, 0.5, 9), (2, 1e9, 12)])
def test_counts_are_dirichlet_multinomial(k: int, concentration: float, total: int) -> None:
    rounds = 8_000
    counts = dirichlet_counts(torch.ones(rounds, k, dtype=torch.bool), total, concentration, generator()).numpy()
    law = betabinom(total, concentration, (k - 1) * concentration).pmf(np.arange(total + 1)) * rounds
    keep = law > 5  # the rest in one class, so that chi-square holds
    for member in range(k):
        seen = np.bincount(counts[:, member], minlength=total + 1)
        observed, expected = [*seen[keep], seen[~keep].sum()], [*law[keep], law[~keep].sum()]
        if expected[-1] < 5:
            assert observed[-1] < 25
            observed, expected = observed[:-1], np.array(expected[:-1]) * sum(observed[:-1]) / sum(expected[:-1])
        assert chisquare(observed, expected).pvalue > 1e-4


def test_the_remainder_of_equal_counts_is_dealt_at_random() -> None:
    present = torch.tensor([[True, True, False, True]]).expand(6_000, 4)
    counts = dirichlet_counts(present, 5, INF, generator())
    assert set(counts[:, present[0]].flatten().tolist()) == {1, 2}
    assert chisquare((counts[:, [0, 1, 3]] == 1).sum(0).numpy()).pvalue > 1e-4


def test_masks_are_uniform_given_their_counts() -> None:
    rounds = 20_000
    masks = exclusive_masks(torch.tensor([[1, 1, 3]]).expand(rounds, 3), generator(), positions=5)
    owner = masks.int().argmax(1).numpy() @ 3 ** np.arange(5)
    seen = np.unique(owner, return_counts=True)[1]
    assert len(seen) == comb(5, 3) * 2
    assert chisquare(seen).pvalue > 1e-4


@each_cutmix
@pytest.mark.parametrize("k", [1, 2, 3])
def test_labels_are_mixed_with_the_shares_that_were_filled(mixer: RandomCutMix, k: int) -> None:
    z, y = group_of(4, k, 3, 16, 2)
    given_ = (z, y) if k > 1 else (z.squeeze(1), y.squeeze(1))
    release, receipt = replace(mixer, group=k).apply(*given_, generator())
    assert receipt.masks is not None
    assert receipt.counts is not None
    assert torch.equal(receipt.ratios, receipt.counts.double() / 16)
    expected = (y.double() * receipt.ratios[:, :, None, None]).sum(1)
    assert torch.allclose(release.labels.double(), expected, rtol=0, atol=1e-6)
    assert torch.allclose(release.labels.sum(-1), torch.ones(4, 3))


@each_cutmix
def test_a_group_of_one_is_the_identity_bit_for_bit(mixer: RandomCutMix) -> None:
    z, y = group_of(4, 1, 3, 16, 2)
    release, receipt = replace(mixer, group=1).apply(z.squeeze(1), y.squeeze(1), generator())
    expected = z.squeeze(1)
    if isinstance(mixer, ShuffledCutMix):
        assert torch.equal(release.smashed.sort(2).values, expected.sort(2).values)
    else:
        assert torch.equal(release.smashed, expected)
    assert torch.equal(release.labels, y.squeeze(1))
    assert receipt.certificate().quantities["largest_ratio"] == 1


@each_mixer
@pytest.mark.parametrize("maps", [False, True])
def test_gradient_is_the_derivative(mixer: Mixer, maps: bool) -> None:
    z, y = group_of(*((2, 2, 2, 1, 4, 4) if maps else (2, 2, 2, 4, 2)), dtype=torch.float64)
    mixer = replace(mixer, patch=2) if maps and isinstance(mixer, RandomCutMix) else mixer

    def released(t: Tensor) -> Tensor:
        return mixer.apply(t, y, generator())[0].smashed.tanh()

    assert torch.autograd.gradcheck(released, (z.requires_grad_(),))


@pytest.mark.parametrize("mixer", [Mixup(group=3), RandomCutMix(group=3), VanillaCutMix(group=3)], ids=lambda d: d.name)
@pytest.mark.parametrize("maps", [False, True])
def test_routing_the_gradient_through_the_weights_is_autograds(mixer: Mixer, maps: bool) -> None:
    """DP-CutMixSL Eq. 10: a client gets its mask times the gradient of the message."""
    z, y = group_of(*((2, 3, 2, 5, 8, 8) if maps else (2, 3, 2, 16, 5)))
    mixer = replace(mixer, patch=2) if maps and isinstance(mixer, RandomCutMix) else mixer
    present = torch.tensor([[True, True, True], [True, True, False]])
    release, _ = mixer.apply(z.requires_grad_(), y, generator(), present)
    upstream = torch.rand(release.smashed.shape, generator=generator(1))
    (found,) = torch.autograd.grad(release.smashed, z, upstream)
    assert release.weights is not None
    weight = spread(release.weights, z, 2, leading=3)
    assert torch.equal(found, upstream.unsqueeze(1) * weight)
    assert torch.allclose(release.smashed, (z * weight).sum(1), rtol=1e-6, atol=1e-7)
    assert torch.equal(found[1, 2], torch.zeros_like(found[1, 2]))


@each_mixer
def test_same_seed_same_bits_and_other_seed_other_bits(mixer: Mixer) -> None:
    z, y = group_of(3, 2, 2, 16, 4)
    state = torch.random.get_rng_state()
    first, again, other = (mixer.apply(z, y, generator(seed))[0].smashed for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), state)


@each_mixer
@pytest.mark.parametrize("maps", [False, True])
def test_nothing_of_an_empty_seat_leaks(mixer: Mixer, maps: bool) -> None:
    z, y = group_of(*((3, 3, 2, 2, 4, 4) if maps else (3, 3, 2, 16, 4)))
    mixer = replace(mixer, patch=1) if maps and isinstance(mixer, RandomCutMix) else mixer
    present = torch.tensor([[True, True, True], [False, True, True], [False, True, False]])
    expected, receipt = replace(mixer, group=3).apply(z, y, generator(), present)
    z[~present], y[~present] = float("nan"), float("nan")
    z.requires_grad_()
    release, _ = replace(mixer, group=3).apply(z, y, generator(), present)
    assert torch.equal(release.smashed, expected.smashed)
    assert torch.equal(release.labels, expected.labels)
    release.smashed.square().sum().backward()
    assert z.grad is not None
    assert not z.grad[~present].any()  # NaN would be true
    assert not receipt.ratios[~present].any()
    assert receipt.certificate().quantities["own_share"] == pytest.approx(3 / 6)


def test_a_batch_of_ratios_gives_the_weighted_sum_of_any_shape() -> None:
    for shape in [(3, 2, 4, 7), (3, 2, 4, 7, 5), (3, 2, 4, 7, 6, 6)]:
        z, _ = group_of(*shape, dtype=torch.float64)
        ratios = dirichlet_ratios(torch.ones(3, 2, dtype=torch.bool), 2.0, generator())
        expected = sum(z[:, i] * ratios[:, i].view(3, *[1] * (z.ndim - 2)) for i in range(2))
        assert isinstance(expected, Tensor)
        assert torch.allclose(mix(z, spread(ratios.unsqueeze(2), z, None, leading=3)), expected, rtol=1e-14, atol=0)


def test_weights_of_single_cells_may_be_any_number() -> None:
    z, _ = group_of(3, 2, 4, 7, 5)
    weight = torch.rand(3, 2, 7, generator=generator())
    assert torch.equal(mix(z, spread(weight, z, None, leading=3)), (z * weight[:, :, None, :, None]).sum(1))


def test_autocast_does_not_round_the_ratios() -> None:
    z, y = group_of(3, 2, 4, 16, 5)
    exact = Mixup().apply(z, y, generator())[0].smashed
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(Mixup().apply(z, y, generator())[0].smashed, exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_receipt_has_the_ratios_of_the_release(dtype: torch.dtype) -> None:
    z, y = torch.ones(3, 2, 1, 4, 1, dtype=dtype), torch.ones(3, 2, 1, 1)
    z[:, 1] = 0
    release, receipt = Mixup().apply(z, y, generator())
    assert torch.equal(release.smashed[:, 0, 0, 0].double(), receipt.ratios[:, 0])


@each_cutmix
def test_images_are_mixed_at_the_input_layer(mixer: RandomCutMix) -> None:
    images, y = group_of(3, 2, 4, 3, 8, 8)
    release, receipt = replace(mixer, level="input").apply(images, y, generator())
    side = 1 if mixer.name == "vanilla_cutmix" else 2
    assert receipt.masks is not None
    assert receipt.masks.shape == (3, 2, 64 // side**2)
    if not isinstance(mixer, ShuffledCutMix):
        assert torch.equal(release.smashed, (images * spread(receipt.masks, images, side, leading=3)).sum(1))


def test_shuffled_cutmix_permutes_the_mixed_cells_of_each_image() -> None:
    z, y = group_of(2, 2, 300, 3, 1)
    plain, _ = RandomCutMix().apply(z, y, generator())
    release, receipt = ShuffledCutMix().apply(z, y, generator())
    found = release.smashed.squeeze(-1)
    assert torch.equal(found.sort(2).values, plain.smashed.squeeze(-1).sort(2).values)
    order = found.argsort(2).gather(2, plain.smashed.squeeze(-1).argsort(2).argsort(2))  # where each token went
    seen = np.unique(order.flatten(0, 1).numpy() @ np.array([9, 3, 1]), return_counts=True)[1]
    assert len(seen) == 6  # all orders, alike, and fresh for each image
    assert chisquare(seen).pvalue > 1e-4
    assert release.weights is not None
    assert torch.equal(release.weights.squeeze(2).double(), receipt.ratios.float().double())
    certificate = receipt.certificate()
    assert certificate.kind == "nothing"
    assert any("no order is counted" in sentence for sentence in certificate.assumptions)


def test_shuffled_cutmix_moves_whole_cells_of_feature_maps() -> None:
    z, y = group_of(2, 2, 3, 5, 4, 4)
    shuffled = ShuffledCutMix(patch=2).apply(z, y, generator())[0].smashed
    plain = RandomCutMix(patch=2).apply(z, y, generator())[0].smashed
    blocks = [maps.unfold(3, 2, 2).unfold(4, 2, 2).movedim(2, 4).flatten(4).flatten(2, 3) for maps in (shuffled, plain)]
    for message, image in np.ndindex(2, 3):
        ours, theirs = ({tuple(row) for row in maps[message, image].tolist()} for maps in blocks)
        assert ours == theirs


def test_two_clients_of_vanilla_cutmix_share_a_box_and_the_rest() -> None:
    coins, present = generator(), torch.ones(500, 2, dtype=torch.bool)
    masks = VanillaCutMix().draw(torch.zeros(500, 2, 1, 64, 1), present, coins, coins)
    square = masks.view(500, 2, 8, 8)
    boxed = (square.any(2).sum(2) * square.any(3).sum(2) == masks.sum(2)).float()  # [500, 2]
    assert boxed.any(1).all()
    alone = (square[:, :, 0, 0] & square[:, :, 7, 7]).float().mean(0)  # a background's corners, mostly
    assert (alone - alone.mean()).abs().max() < 4.5 * 0.5 / 500**0.5  # either member gives it


@pytest.mark.parametrize("mixer", [Mixup(), VanillaCutMix()], ids=lambda d: d.name)
def test_mean_ratio_is_the_laws(mixer: Mixer) -> None:
    z, y = torch.zeros(2_000, 3, 1, 64, 1), torch.zeros(2_000, 3, 1, 2)
    _, receipt = replace(mixer, group=3, concentration=2.0).apply(z, y, generator())
    ratios = receipt.ratios
    deviation = (2.0 * 4.0 / (6.0**2 * 7.0)) ** 0.5  # of Beta(2, 4)
    assert (ratios.mean(0) - 1 / 3).abs().max() < 4.5 * deviation / 2_000**0.5
    assert (ratios.std(0) - deviation).abs().max() < 0.02


@each_mixer
def test_certificates_say_that_nothing_is_proven(mixer: Mixer) -> None:
    z, y = group_of(4, 2, 3, 16, 2)
    _, receipt = replace(mixer, published=False).apply(z, y, generator())
    certificate = receipt.certificate(ReleaseCount(epochs=3, unmatched=1))
    assert (certificate.kind, certificate.epsilon, certificate.delta) == ("nothing", INF, None)
    assert "no differential privacy" in certificate.statement
    assert certificate.quantities["own_share"] == pytest.approx(0.5)
    assert certificate.quantities["largest_ratio"] == receipt.ratios.max().item()
    if isinstance(mixer, Mixup):
        assert certificate.quantities["payload_share"] == 1
        assert receipt.counts is None
    else:
        assert certificate.quantities["payload_share"] == pytest.approx(0.5)
        assert certificate.quantities["positions_seen"] == pytest.approx(1 - 0.5**3)
        _, once = replace(mixer, drawn="once").apply(z, y, generator())
        seen = 1 - (1 - once.ratios) ** 3  # each client keeps its ratio
        assert once.certificate(ReleaseCount(epochs=3)).quantities["positions_seen"] == pytest.approx(
            seen.mean().item()
        )
    assert any("other members" in sentence for sentence in certificate.assumptions)
    assert "some message holds one client's data alone" in certificate.assumptions


def test_positions_seen_is_what_fresh_masks_show() -> None:
    z, y, draws = torch.zeros(500, 2, 1, 16, 1), torch.zeros(500, 2, 1, 2), generator()
    seen = torch.zeros(500, 16, dtype=torch.bool)
    for _ in range(3):
        _, receipt = RandomCutMix(concentration=0.5).apply(z, y, draws)
        assert receipt.masks is not None
        seen |= receipt.masks[:, 0]
    expected = receipt.certificate(ReleaseCount(epochs=3)).quantities["positions_seen"]
    shares = seen.double().mean(1)
    assert abs(shares.mean().item() - expected) < 4.5 * shares.std().item() / 500**0.5


@each_mixer
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"group": 0}, "group must be a whole number >= 1, got 0"),
        ({"group": 2.5}, "group must be a whole number"),
        ({"concentration": 0}, "concentration must be a number >= 1e-06, or inf, got 0; inf gives equal ratios"),
        ({"concentration": -1.0}, "concentration must be"),
        ({"concentration": float("nan")}, "concentration must be"),
        ({"concentration": -INF}, "concentration must be"),
        ({"level": "logits"}, "level must be one of smashed, input"),
    ],
)
def test_bad_fields_are_refused(mixer: Mixer, fields: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        replace(mixer, **fields)  # type: ignore[arg-type]


@each_mixer
def test_other_groups_and_class_numbers_are_refused(mixer: Mixer) -> None:
    z, y = group_of(4, 3, 2, 16, 2)
    with pytest.raises(ValueError, match=r"mixes groups of 2 and needs smashed \[G, 2, B, ...\]"):
        mixer.apply(z, y, generator())
    with pytest.raises(ValueError, match="needs one-hot labels"):
        mixer.apply(z[:, :2], y[:, :2].argmax(-1), generator())
    with pytest.raises(ValueError, match="present must be bool"):
        mixer.apply(z[:, :2], y[:, :2], generator(), torch.ones(2, 2, dtype=torch.bool))


@each_cutmix
def test_masks_on_a_model_without_tokens_are_refused(mixer: RandomCutMix) -> None:
    z, y = group_of(2, 2, 2, 4, 8, 8)
    with pytest.raises(ValueError, match=f"{mixer.name} needs tokens .* or give patch=, the side of a position"):
        mixer.apply(z, y, generator())
    with pytest.raises(ValueError, match="patch=3 does not divide"):
        replace(mixer, patch=3).apply(z, y, generator())
    with pytest.raises(ValueError, match="needs tokens"):
        mixer.apply(z[..., 0, 0], y, generator())


def test_mixing_class_numbers_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="one_hot"):
        mix_labels(torch.zeros(2, 2, 3, dtype=torch.int64), torch.ones(2, 2))
