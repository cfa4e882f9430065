"""Token dropping and merging: shorter releases, the papers' laws, and what can read what is left."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Generator, Tensor, nn

from privkit.attacks.base import NotApplicable, QueryResult, View
from privkit.attacks.goals.reconstruct import ImageObservation
from privkit.attacks.inversion.adaptive import Adaptive
from privkit.attacks.inversion.black_box import BlackBox
from privkit.attacks.inversion.known_lower import check_release
from privkit.audit.assembled import assemble
from privkit.defenses.base import Defense, ReleaseCount
from privkit.defenses.fewer_tokens import TokenDropping, TokenMerging, merge_step
from privkit.errors import UsageError
from privkit.parts.registry import parse
from privkit.settings.resolve import resolve
from privkit.training.costs import client_costs
from privkit.training.spec import TrainingSpec
from privkit.wire.channel import record_rounds
from tests.small import IMAGES, built, digits, generator

Kind = type[TokenDropping] | type[TokenMerging]
SHORTER: list[Kind] = [TokenDropping, TokenMerging]
both = pytest.mark.parametrize("kind", SHORTER, ids=lambda kind: kind.name)
Y = torch.zeros(2, 3)


def released(defense: Defense, z: Tensor, seed: int = 0) -> Tensor:
    return defense.apply(z, torch.zeros(z.shape[:2]), generator(seed))[0].smashed


@both
def test_keeping_all_is_no_defense_bit_for_bit(kind: Kind) -> None:
    z = torch.randn(2, 3, 9, 4, generator=generator())
    draws = generator(1)
    assert torch.equal(kind(keep=1.0).apply(z, Y, draws)[0].smashed, z)
    assert torch.equal(draws.get_state(), generator(1).get_state())


@both
@pytest.mark.parametrize(("keep", "left"), [(0.75, 12), (0.5, 8), (0.3, 5), (0.01, 1)])
def test_the_share_that_is_left_is_exact(kind: Kind, keep: float, left: int) -> None:
    release, receipt = kind(keep=keep).apply(torch.randn(2, 3, 16, 4, generator=generator()), Y, generator())
    assert release.smashed.shape == (2, 3, left, 4)
    certificate = receipt.certificate()
    assert certificate.kind == "nothing"
    assert certificate.quantities["payload_share" if kind is TokenDropping else "tokens_left"] == left / 16


@given(m=st.integers(1, 2), b=st.integers(1, 3), t=st.integers(1, 12), keep=st.floats(0.01, 1), seed=st.integers(0, 99))
def test_dropping_leaves_own_tokens_in_order(m: int, b: int, t: int, keep: float, seed: int) -> None:
    z = torch.arange(m * b * t, dtype=torch.float32).view(m, b, t, 1)
    release, receipt = TokenDropping(keep=keep).apply(z, torch.zeros(m, b), generator(seed))
    assert receipt.masks is not None
    assert torch.equal(release.smashed.flatten(), z.flatten()[receipt.masks.flatten()])
    assert (release.smashed.diff(dim=2) > 0).all()


def test_every_choice_of_tokens_is_equally_likely_and_each_image_has_its_own() -> None:
    z = torch.tensor([1.0, 2.0, 4.0, 8.0]).view(1, 1, 4, 1).expand(1, 6_000, 4, 1)
    seen = released(TokenDropping(), z).sum((2, 3)).flatten().int().bincount()
    assert chisquare(seen[seen > 0].numpy()).pvalue > 1e-4
    assert len(seen[seen > 0]) == 6


def test_positions_seen_follow_fresh_drops() -> None:
    _, receipt = TokenDropping(keep=0.5).apply(torch.zeros(2, 3, 8, 1), Y, generator())
    assert receipt.certificate(ReleaseCount(epochs=3)).quantities["positions_seen"] == 1 - 0.5**3
    _, merged = TokenMerging(keep=0.5).apply(torch.rand(2, 3, 8, 1), Y, generator())
    assert "positions_seen" not in merged.certificate().quantities


def bipartite(tokens: list[Tensor], sizes: list[float], pairs: int) -> tuple[list[Tensor], list[float]]:
    """ToMe's step as its §3 says it, in words: an edge from each even token, the best ones merged by weighted mean."""
    odd = range(1, len(tokens), 2)
    cosine = torch.nn.functional.cosine_similarity
    edges = [(*max((cosine(tokens[a], tokens[b], 0).item(), -b) for b in odd), a) for a in range(0, len(tokens), 2)]
    merged = sorted(edges, reverse=True)[:pairs]
    groups = {b: [b, *(a for _, minus, a in merged if -minus == b)] for b in odd}
    stay = [a for a in range(0, len(tokens), 2) if a not in {edge[2] for edge in merged}]
    members = [[a] for a in stay] + list(groups.values())
    weights = [sum(sizes[i] for i in group) for group in members]
    means = [torch.stack([sizes[i] * tokens[i] for i in group]).sum(0) for group in members]
    return [mean / weight for mean, weight in zip(means, weights, strict=True)], weights


@pytest.mark.parametrize("keep", [0.75, 0.5, 0.4, 0.15])
def test_merging_is_the_size_weighted_mean_of_the_bipartite_matching(keep: float) -> None:
    z = torch.randn(2, 3, 13, 4, generator=generator(), dtype=torch.float64)
    got = released(TokenMerging(keep=keep), z)
    for row, merged in zip(z.flatten(0, 1), got.flatten(0, 1), strict=True):
        tokens, sizes = list(row), [1.0] * 13
        while pairs := min(len(tokens) - round(keep * 13), len(tokens) // 2):
            tokens, sizes = bipartite(tokens, sizes, pairs)
        torch.testing.assert_close(merged, torch.stack(tokens))


def test_sizes_add_up_and_the_weighted_mean_of_an_image_stays() -> None:
    tokens, sizes = torch.randn(4, 9, 3, generator=generator()), torch.ones(4, 9, 1)
    mean = tokens.mean(1)
    for pairs in (4, 2, 1):
        tokens, sizes = merge_step(tokens, sizes, pairs)
        assert (sizes.sum(1) == 9).all()
        torch.testing.assert_close((tokens * sizes).sum(1) / 9, mean)


def test_merging_is_public_and_treats_equal_tokens_as_one() -> None:
    z = torch.randn(1, 5, 4, 3, generator=generator()).repeat_interleave(2, 2)
    assert torch.equal(released(TokenMerging(), z, seed=1), TokenMerging().public_transform(z[0]).unsqueeze(0))
    torch.testing.assert_close(released(TokenMerging(), z).sort(2).values, z[:, :, ::2].sort(2).values)


@both
def test_fewer_tokens_cost_fewer_bytes_and_a_view_says_so(kind: Kind) -> None:
    data, ups = digits(20), []
    for keep in (1.0, 0.25):
        edge, _ = built(kind(keep=keep))
        cost = client_costs(edge, data, TrainingSpec(batch_size=5), rounds_an_epoch=4, seed=0)
        view = record_rounds(edge, data, batch_size=5, seed=0).views[0]
        assert view.whole is (keep == 1)
        ups.append((cost.bytes_up, cost.bytes_down, view.smashed[0].numel() * 4))
    assert ups[0][0] == 4 * ups[1][0] == ups[0][2]
    assert ups[1] == (ups[1][2],) * 3


def test_a_decoder_reads_any_number_of_tokens_and_others_refuse() -> None:
    """Three of four tokens of each image: what is left is decoded much better than by the mean image."""
    own = torch.rand(480, 1, 1, 1, generator=generator()) + 0.1 * torch.rand(480, 1, 4, 4, generator=generator(1))
    own = own / 1.1

    def query(images: Tensor, draws: Generator) -> QueryResult:
        places = torch.eye(4).expand(len(images), 4, 4)
        tokens = torch.cat([images.unfold(2, 2, 2).unfold(3, 2, 2).reshape(len(images), 4, 4), places], 2)
        kept = TokenDropping(keep=0.75).apply(tokens.unsqueeze(0), torch.zeros(1, len(images)), draws)[0].smashed[0]
        members = torch.arange(len(images)).unsqueeze(1)
        return QueryResult(view=View(round=0, smashed=kept, whole=False), members=members)

    private, own = own[:20], own[20:]
    observation = ImageObservation(
        views=[query(private, generator(2)).view],
        image_shape=(1, 4, 4),
        batch_size=20,
        auxiliary=own,
        query=query,
    )
    guess = BlackBox(epochs=15, width=32, depth=1, learning_rate=0.003).run(observation, generator())
    assert (guess.images - private).square().mean() < 0.1 * (own.mean(0) - private).square().mean()
    with pytest.raises(NotApplicable, match="decoder=set reads one for each patch: take decoder=mae"):
        BlackBox(decoder="set", epochs=1).run(observation, generator())
    lower = nn.Sequential(nn.Flatten(1), nn.Unflatten(1, (4, 4)))
    with pytest.raises(NotApplicable, match="gives 4 tokens per image, of which 3 were released, and it is not known"):
        check_release(lower, observation.views[0], (1, 4, 4))
    with pytest.raises(NotApplicable, match="adaptive needs a token for each patch of an image: take black_box"):
        Adaptive(epochs=1).run(observation, generator())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("token_dropping+patch_shuffle", "token_dropping drops some: the count would be false; use one of them"),
        ("token_merging+random_cutmix", "tokens of other places in each image, so random_cutmix would mix"),
        ("token_dropping+random_cutout", "both leave out positions"),
        ("token_dropping:keep=0", "keep should be a finite number > 0 and <= 1|keep must be a finite number > 0"),
    ],
)
def test_what_no_one_derived_is_refused(name: str, said: str) -> None:
    with pytest.raises((ValueError, UsageError), match=said):
        parse("defenses", name)


def test_noise_beside_fewer_tokens_keeps_its_claim() -> None:
    z = torch.rand(1, 4, 8, 3, generator=generator())
    for order in ("token_dropping+gaussian_noise:sigma=2,clip=1", "gaussian_noise:sigma=2,clip=1+token_merging"):
        release, receipt = parse("defenses", order).spec.apply(z, torch.zeros(1, 4), generator())
        assert release.smashed.shape == (1, 4, 4, 3)
        assert receipt.certificate().kind == "differential_privacy"


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("pit_tiny", "server needs all of them .* take a model whose upper segment is blocks of attention"),
        ("resnet20", r"needs tokens \[M, B, T, D\]"),
        ("vit_micro:pool=token,class_token=client", "may drop or merge the class token .* leave it to the server"),
    ],
)
def test_models_that_need_all_tokens_are_refused(model: str, said: str) -> None:
    config = resolve({"defense": "token_dropping", "model": model, "dataset": "tiny_digits"})
    with pytest.raises(UsageError, match=said):
        assemble(config, config.defenses[-1].spec, IMAGES, 10, 0)
