"""Every registered defense against the laws of its contract, and the shuffles against their own."""

import dataclasses
import json
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Generator, Tensor
from torch.nn.functional import one_hot

from privkit.accountants.shuffles.permutations import kept_tokens, own_image_share
from privkit.defenses.base import Defense, Release, ReleaseCount
from privkit.defenses.batch_shuffle import BatchShuffle
from privkit.defenses.patch_shuffle import PatchShuffle
from privkit.registry import load, parse, table
from tests.small import generator

DEFENSES: list[Defense] = [load(target)() for _, target in sorted(table("defenses").items())]
CLASSES, TOKENS, SIDE = 5, 16, 28

every_defense = pytest.mark.parametrize("defense", DEFENSES, ids=lambda d: d.name)


def inputs(
    defense: Defense, *, messages: int = 2, batch: int = 3, channels: int = 3, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Data in [0, 1] of the shape that a defense is given, and its labels; nothing is drawn from its generator."""
    draws = generator(99)
    lead = (messages, defense.group, batch) if defense.group > 1 else (messages, batch)
    shape = (channels, SIDE, SIDE) if defense.level == "input" else (TOKENS, 4)
    labels = torch.randint(CLASSES, lead, generator=draws)
    data = torch.rand(*lead, *shape, generator=draws, dtype=dtype)
    return data, one_hot(labels, CLASSES).to(dtype) if defense.soft_labels else labels


def same(a: Release, b: Release) -> bool:
    """Bit by bit, public coins included."""
    pairs = [(a.smashed, b.smashed), (a.labels, b.labels), (a.weights, b.weights)]
    return all(x is y is None or (x is not None and y is not None and torch.equal(x, y)) for x, y in pairs)


@every_defense
def test_same_seed_same_bits_and_other_bits_wherever_it_draws(defense: Defense) -> None:
    z, y = inputs(defense)
    draws = generator(0)
    before = draws.get_state()
    first = defense.apply(z, y, draws)[0]
    drew = not torch.equal(draws.get_state(), before)
    assert same(first, defense.apply(z, y, generator(0))[0])
    assert same(first, defense.apply(z, y, generator(1))[0]) != drew


@every_defense
def test_gradients_sent_back_follow_the_same_law(defense: Defense) -> None:
    gradient = torch.randn(2, 3, TOKENS, 4, generator=generator(9))
    draws = generator(0)
    before = draws.get_state()
    first = defense.on_gradient(gradient, draws)
    assert first.shape == gradient.shape
    assert first.dtype == gradient.dtype
    assert torch.equal(first, defense.on_gradient(gradient, generator(0)))
    drew = not torch.equal(draws.get_state(), before)
    assert torch.equal(first, defense.on_gradient(gradient, generator(1))) != drew


@every_defense
def test_leaves_the_global_generator_and_its_inputs_alone(defense: Defense) -> None:
    z, y = inputs(defense)
    kept, state = (z.clone(), y.clone()), torch.random.get_rng_state()
    defense.apply(z, y, generator())
    networks = defense.companion((TOKENS, 4), (3, SIDE, SIDE), 0), defense.adapter((TOKENS, 4), 0)
    again = defense.companion((TOKENS, 4), (3, SIDE, SIDE), 0), defense.adapter((TOKENS, 4), 0)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(z, kept[0])
    assert torch.equal(y, kept[1])
    for one, other in zip(networks, again, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            pairs = list(zip(one.parameters(), other.parameters(), strict=True))
            assert pairs
            assert all(torch.equal(a, b) for a, b in pairs)


@every_defense
def test_gradient_through_the_defense_is_the_derivative(defense: Defense) -> None:
    z, y = inputs(defense, messages=2 if defense.group == 1 else 1, batch=2, channels=1, dtype=torch.float64)
    fast = defense.level == "input"  # the whole Jacobian of images would take a minute

    def released(data: Tensor) -> Tensor:
        return defense.apply(data, y, generator())[0].smashed.tanh()

    assert torch.autograd.gradcheck(released, (z.requires_grad_(),), fast_mode=fast)


@every_defense
def test_a_release_has_a_message_for_every_message_and_a_label_for_every_image(defense: Defense) -> None:
    z, y = inputs(defense)
    release, _ = defense.apply(z, y, generator())
    lead, shape = (2, 3), z.shape[-3:] if defense.level == "input" else z.shape[-2:]
    adapter = defense.adapter(tuple(z.shape[-2:]), 0)
    smashed = release.smashed if adapter is None else adapter(release.smashed)
    shorter = "shortens" in (defense.effects or ())
    assert smashed.shape == (*lead, TOKENS // 2, *shape[1:]) if shorter else (*lead, *shape)
    assert smashed.dtype == z.dtype
    assert release.labels.shape == ((*lead, CLASSES) if release.labels.is_floating_point() else lead)
    if release.weights is not None:
        assert release.weights.shape[:2] == (2, defense.group)
        assert release.weights.ndim == 3


@every_defense
def test_empty_seats_count_nothing(defense: Defense) -> None:
    if defense.group == 1:
        return
    z, y = inputs(defense)
    present = torch.ones(2, defense.group, dtype=torch.bool)
    full = defense.apply(z, y, generator(), present)[0]
    assert same(full, defense.apply(z, y, generator())[0])
    present[1, -1] = False
    other = z.clone()
    other[1, -1] = 1 - other[1, -1]
    first, second = (defense.apply(data, y, generator(), present)[0].smashed for data in (z, other))
    assert torch.equal(first, second)


EXPOSURES = [
    ReleaseCount(),
    ReleaseCount(rounds=30, epochs=3, batch_size=8, clients=4, lower_model="trained"),
    ReleaseCount(rounds=30, epochs=3, batch_size=8, clients=5, lower_model="averaged", unmatched=1),
    ReleaseCount(rounds=200, epochs=20, clients=2, delta=1e-6),
]


@every_defense
@pytest.mark.parametrize("release_count", EXPOSURES, ids=lambda e: f"{e.lower_model}-{e.rounds}")
def test_receipts_charge_every_exposure(defense: Defense, release_count: ReleaseCount) -> None:
    z, y = inputs(defense)
    certificate = defense.apply(z, y, generator())[1].certificate(release_count)
    assert certificate.kind in ("nothing", "permutation_count", "differential_privacy")
    assert (certificate.kind == "differential_privacy") == (certificate.epsilon < np.inf)
    assert certificate.statement
    assert certificate.source
    if certificate.kind == "nothing":
        assert "nothing is proven" in certificate.statement
    json.dumps(dataclasses.asdict(certificate))


@every_defense
@pytest.mark.parametrize("shape", [(4,), (2, 3)])
def test_bad_shapes_are_refused_with_a_sentence(defense: Defense, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r".{20}") as error:
        defense.apply(torch.zeros(shape), torch.zeros(shape[:1], dtype=torch.int64), generator())
    assert str(list(shape)) in str(error.value)


@every_defense
def test_specifications_are_json_with_their_name(defense: Defense) -> None:
    component = parse("defenses", defense.name)
    assert component.spec == defense
    assert json.loads(json.dumps(component.to_json()))["name"] == defense.name


@every_defense
def test_penalties_are_one_finite_number_a_client(defense: Defense) -> None:
    images = torch.rand(2, 4, 3, SIDE, SIDE, generator=generator())
    smashed = torch.rand(2, 4, TOKENS, 4, generator=generator(1), requires_grad=True)
    companion = defense.companion((TOKENS, 4), (3, SIDE, SIDE), 0)
    found = defense.penalty(images, smashed, companion)
    assert (companion is None) or (found is not None)  # nobody trains what has no loss
    if found is not None:
        assert found.shape == (2,)
        found.sum().backward()
        assert smashed.grad is not None
        assert smashed.grad.isfinite().all()
        trained = [smashed.grad, *(p.grad for p in companion.parameters())] if companion else [smashed.grad]
        assert any(g is not None and bool((g != 0).any()) for g in trained)


SHUFFLES = [
    PatchShuffle(),
    *[BatchShuffle(keep=keep) for keep in (0.0, 0.4, 1.0)],
    BatchShuffle(variant="algorithm_2"),
    BatchShuffle(variant="kept_in_place"),
]


@pytest.mark.parametrize("defense", SHUFFLES, ids=str)
def test_shuffles_are_bijections_of_every_message(defense: Defense) -> None:
    z = torch.arange(3 * 7 * 10, dtype=torch.float32).view(3, 7, 10, 1)
    released = defense.apply(z, torch.zeros(3, 7), generator())[0].smashed
    assert torch.equal(released.flatten(1).sort(1).values, z.flatten(1))
    assert not torch.equal(released, z)


def test_one_message_draws_what_it_always_drew() -> None:
    n, t, kept = 4, 10, 4
    z = torch.rand(n, t, 3, generator=generator(5))

    def uniform(draws: Generator) -> Tensor:
        return torch.rand(n, t, generator=draws, dtype=torch.float64).argsort(1)

    shuffled = z.gather(1, uniform(generator()).unsqueeze(2).expand(-1, -1, 3))
    assert torch.equal(PatchShuffle().apply(z[None], torch.zeros(1, n), generator())[0].smashed[0], shuffled)

    draws = generator()
    rows = uniform(draws) + t * torch.arange(n).unsqueeze(1)
    pool = rows[:, kept:].flatten()
    dealt = pool[torch.randperm(len(pool), generator=draws)].view(n, t - kept)
    source = torch.cat([rows[:, :kept], dealt], 1).gather(1, uniform(draws))
    release, receipt = BatchShuffle(keep=0.4).apply(z[None], torch.zeros(1, n), generator())
    assert torch.equal(receipt.source[0], source)
    assert torch.equal(release.smashed[0], z.flatten(0, 1)[source])


@given(m=st.integers(1, 3), n=st.integers(1, 8), t=st.integers(1, 20), seed=st.integers(0, 2**32))
def test_patch_shuffle_stays_inside_each_image(m: int, n: int, t: int, seed: int) -> None:
    z = torch.arange(m * n * t, dtype=torch.float32).view(m, n, t, 1)
    release, receipt = PatchShuffle().apply(z, torch.zeros(m, n), generator(seed))
    assert torch.equal(release.smashed, z.gather(2, receipt.permutation.unsqueeze(-1)))
    assert torch.equal(release.smashed.sort(2).values, z)


@given(
    m=st.integers(1, 3),
    n=st.integers(2, 8),
    t=st.integers(1, 20),
    percent=st.integers(0, 100),
    seed=st.integers(0, 2**32),
)
def test_batch_shuffle_keeps_at_least_what_it_promises(m: int, n: int, t: int, percent: int, seed: int) -> None:
    z = torch.arange(m * n * t, dtype=torch.float32).view(m, n, t, 1)
    release, receipt = BatchShuffle(keep=percent / 100).apply(z, torch.zeros(m, n), generator(seed))
    assert torch.equal(release.smashed, z.flatten(0, 2)[receipt.source])
    own = (receipt.source // t == torch.arange(m * n).view(m, n, 1)).sum(2)
    assert receipt.kept == kept_tokens(t, percent / 100)
    assert (own >= receipt.kept).all()


@pytest.mark.parametrize(("batch", "tokens", "keep"), [(50, 196, 0.4), (8, 16, 0.4), (4, 20, 0.25), (2, 10, 0.0)])
def test_own_image_share_follows_its_law(batch: int, tokens: int, keep: float) -> None:
    draws, rounds = generator(), 30 if tokens == 196 else 300
    z, y = torch.zeros(2, batch, tokens, 1), torch.zeros(2, batch)
    shares = [BatchShuffle(keep=keep).apply(z, y, draws)[1].own_image_share for _ in range(rounds)]
    expected = own_image_share(tokens, batch, kept_tokens(tokens, keep))
    error = np.std(shares, ddof=1) / rounds**0.5
    assert abs(np.mean(shares) - expected) < 4.5 * error  # two-sided odds of 7e-6


def test_every_permutation_of_an_image_is_equally_likely() -> None:
    rounds = 12_000
    z = torch.arange(4.0).view(1, 1, 4, 1).expand(2, rounds // 2, 4, 1)
    released = PatchShuffle().apply(z, torch.zeros(2, rounds // 2), generator())[0].smashed.view(rounds, 4).long()
    orders = {order: i for i, order in enumerate(permutations(range(4)))}
    seen = np.bincount([orders[tuple(row)] for row in released.tolist()], minlength=24)
    assert chisquare(seen).pvalue > 1e-4


def test_pooled_tokens_go_to_every_image_and_place_alike() -> None:
    rounds = 3_000  # as messages of one call
    _, receipt = BatchShuffle(keep=0.5).apply(torch.zeros(rounds, 3, 4, 1), torch.zeros(rounds, 3), generator())
    first = 12 * torch.arange(rounds).view(rounds, 1, 1)
    seen = (receipt.source == first).sum(0)  # where token 0 of image 0 of every message went
    assert int(seen.sum()) == rounds
    foreign, own = seen[1:].flatten().numpy(), seen[0].numpy()
    assert chisquare(foreign).pvalue > 1e-4
    assert chisquare(own).pvalue > 1e-4
    assert own.sum() / rounds == pytest.approx(0.5 + 0.5 / 3, abs=0.04)


def test_receipts_charge_the_message_that_was_mixed_and_not_the_round() -> None:
    _, receipt = BatchShuffle(keep=0.4).apply(torch.zeros(3, 5, 16, 1), torch.zeros(3, 5), generator())
    certificate = receipt.certificate(ReleaseCount(clients=3, batch_size=5, rounds=7, epochs=7))
    assert certificate.quantities["own_image_share"] == pytest.approx(own_image_share(16, 5, 6))
    assert certificate.quantities == receipt.certificate().quantities
    assert any("the run makes 7 of every image" in sentence for sentence in certificate.assumptions)
    assert not any("of every image" in sentence for sentence in receipt.certificate().assumptions)


def test_a_batch_of_one_is_refused() -> None:
    with pytest.raises(ValueError, match="a batch of one mixes nothing"):
        BatchShuffle().apply(torch.zeros(3, 1, 4, 2), torch.zeros(3, 1), generator())


@pytest.mark.parametrize("defense", [PatchShuffle(), BatchShuffle()], ids=lambda d: d.name)
def test_feature_maps_are_refused(defense: Defense) -> None:
    with pytest.raises(ValueError, match="needs tokens"):
        defense.apply(torch.zeros(1, 4, 3, 2, 2), torch.zeros(1, 4), generator())


@pytest.mark.parametrize("keep", [-0.1, 1.5, float("nan")])
def test_keep_must_be_a_share(keep: float) -> None:
    with pytest.raises(ValueError, match="keep must be a finite number >= 0 and <= 1"):
        BatchShuffle(keep=keep)


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32))
def test_a_planted_bias_would_be_found(seed: int) -> None:
    """The uniformity test above has power: a shuffle that never moves token 0 fails it."""
    rows = torch.rand(2_000, 3, generator=generator(seed)).argsort(1) + 1
    biased = torch.cat([torch.zeros(2_000, 1, dtype=torch.int64), rows], 1).numpy()
    orders = {order: i for i, order in enumerate(permutations(range(4)))}
    seen = np.bincount([orders[tuple(row)] for row in biased.tolist()], minlength=24)
    assert chisquare(seen).pvalue < 1e-4
