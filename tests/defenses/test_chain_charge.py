"""What a chain is charged: never less than its releases move."""

from dataclasses import replace
from itertools import permutations
from math import inf

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from privkit.accountants.spec.parts import PrivateUpdates
from privkit.defenses.base import Defense, Release, ReleaseCount
from privkit.defenses.batch_shuffle import BatchShuffle
from privkit.defenses.chain import Chain
from privkit.defenses.compile import run
from privkit.defenses.noise import GaussianNoise
from privkit.defenses.split_parts import held_parts
from privkit.domains.images.domain import Images
from privkit.errors import UsageError
from privkit.training.clients import Clients
from privkit.training.protocol import SplitProtocol
from tests.defenses.chains import (
    CLASSES,
    DEFENSES,
    DIM,
    RUN,
    TOKENS,
    chain,
    claim,
    clients_of,
    inputs,
    made,
    trusted_noise,
)
from tests.small import generator

pytestmark = pytest.mark.usefixtures("closed_forms")


def shift(stages: tuple[Defense, ...], tries: int, norm: int) -> float:
    """Largest distance of two noiseless releases whose inputs differ in one image, over data that try hard."""
    most, group = 0.0, max(stage.group for stage in stages)
    quiet = tuple(stage.noiseless() for stage in stages)
    groups = torch.arange(2).view(1, 2) if group > 1 else None
    for seed in range(tries):
        draws = generator(seed)
        z = 10.0 ** torch.randint(-2, 4, (2, 4, 1, 1), generator=draws) * torch.randn(
            2, 4, TOKENS, DIM, generator=draws
        )
        other = z.clone()
        other[0, 0] = -10 * z[0, 0].roll(1, 0)
        y = one_hot(torch.arange(4).expand(2, 4) % CLASSES, CLASSES).float()
        pair = (run(quiet, Release(smashed=x, labels=y), generator(seed), groups)[0].smashed for x in (z, other))
        a, b = pair
        most = max(most, (a - b).flatten().norm(p=norm).item())
    return most


NOISES = [defense for defense in DEFENSES if trusted_noise(defense)]


@pytest.mark.parametrize("last", NOISES, ids=lambda d: d.name)
def test_no_stage_before_noise_moves_a_record_further_than_is_charged(last: Defense) -> None:
    for before in DEFENSES:
        if before.level == "input" or isinstance(made(DEFENSES.index(before), DEFENSES.index(last)), str):
            continue
        if getattr(last, "clip", 1.0) is None and "clips" not in (before.effects or ()):
            continue  # nothing is charged
        built = Chain(stages=(before, last))
        charged = claim(built, *inputs(built)).quantities["sensitivity_smashed"]
        norm = 1 if last.name == "laplace_noise" else 2
        assert shift(built.stages, 5, norm) <= charged * (1 + 1e-5), built.name


@pytest.mark.parametrize(
    "stages", [t for t in permutations(("clip", "clip:clip_by=image", "batch_shuffle", "mixup"), 2)]
)
@pytest.mark.parametrize("last", ["gaussian_noise@mixer", "gaussian_noise:clip=3,clip_by=image@mixer"])
def test_nor_do_two_stages_before_it(stages: tuple[str, str], last: str) -> None:
    try:
        built = chain(*stages, last)
    except UsageError:
        return
    assert isinstance(built, Chain)
    assert shift(built.stages, 10, 2) <= claim(built, *inputs(built)).quantities["sensitivity_smashed"] * (1 + 1e-5)


def test_noisy_updates_behind_a_clipped_mix_are_charged_by_nobody() -> None:
    updates = replace(RUN, lower_model=PrivateUpdates(noise_multiplier=1.0, steps=3))
    z, y = inputs(chain("mixup"))
    assert chain("mixup", "dp_sl@mixer").apply(z, y, generator())[1].certificate(updates).kind == "nothing"
    assert chain("dp_sl", "mixup").apply(z, y, generator())[1].certificate(updates).kind == "differential_privacy"


@pytest.mark.parametrize("stages", [("mixup",), ("mixup:level=input",)])
def test_a_mix_in_front_of_noise_teaches_other_clients_and_is_charged_only_if_they_are_all_in_it(
    stages: tuple[str, ...],
) -> None:
    """The noise is the same in both runs, and so is the server's gradient: what differs went past the noise."""
    edge = clients_of(*stages, "gaussian_noise:clip=.5@mixer", clients=4)
    images, labels = torch.rand(4, 4, 1, 8, 8, generator=generator()), torch.zeros(4, 4, dtype=torch.int64)
    neighbor = images.clone()
    neighbor[0] = 0
    taught = []
    for data in (images, neighbor):
        edge.zero_grad()
        sent = edge.release(data, labels, generator(1))
        sent.release.smashed.sum().backward()
        taught.append(edge.lowers.module.get_parameter("scale").grad)
    others = taught[0][1:] != taught[1][1:]  # type: ignore[index]
    seats = sent.groups[(sent.groups == 0).any(1)][0].tolist()
    assert bool(others.any()) == (stages[0] == "mixup" or seats[0] != 0)
    trained = replace(RUN, lower_model="trained", clients=4)
    found = sent.receipt.certificate(trained)
    assert found.kind == "nothing"
    assert "what their lower segments release in other groups" in found.statement
    assert sent.receipt.certificate(replace(trained, clients=2)).kind == "differential_privacy"
    assert sent.receipt.certificate(RUN).kind == "differential_privacy"


def test_the_refused_order_would_move_a_record_further_than_is_charged() -> None:
    """The test above has power: a batch shuffle in front of a norm per image breaks the bound of one record."""
    last = GaussianNoise(clip=1.0, clip_by="image")
    assert shift((BatchShuffle(keep=0.0), last), 20, 2) > 2.05
    assert shift((last, BatchShuffle(keep=0.0)), 20, 2) <= 2.0 * (1 + 1e-5)


def test_a_clip_in_front_of_noise_is_its_bound_while_only_permutations_lie_between() -> None:
    z, y = inputs(GaussianNoise())
    tight = claim(GaussianNoise(clip=0.25), z, y).epsilon
    for stages in [
        ("clip:bound=.25", "gaussian_noise"),
        ("clip:bound=.25", "gaussian_noise:clip=none"),
        ("clip:bound=.25", "patch_shuffle", "gaussian_noise:clip=none"),
        ("clip:bound=.25", "batch_shuffle", "gaussian_noise:clip=none"),
    ]:
        assert claim(chain(*stages), z, y).epsilon == tight
    assert claim(chain("clip:bound=9", "gaussian_noise"), z, y).epsilon == claim(GaussianNoise(), z, y).epsilon
    for stages in [
        ("clip:bound=.25", "scaling@client", "gaussian_noise:clip=none"),
        ("clip:bound=.25,clip_by=image", "batch_shuffle", "gaussian_noise:clip=none"),
        ("gaussian_noise:clip=none", "masking"),
    ]:
        assert claim(chain(*stages), z, y).epsilon == inf


def test_a_lower_bound_is_kept_only_if_what_the_noise_releases_arrives() -> None:
    z, y = inputs(GaussianNoise())
    alone = claim(GaussianNoise(), z, y).lower
    assert alone is not None
    assert claim(chain("gaussian_noise", "masking"), z, y).lower == alone
    assert claim(chain("gaussian_noise", "masking@client"), z, y).lower is None
    assert claim(chain("patch_shuffle", "gaussian_noise"), z, y).lower is None


def test_the_order_of_a_chain_is_that_of_its_shuffle() -> None:
    z, y = inputs(GaussianNoise())
    receipt = chain("clip", "batch_shuffle", "gaussian_noise").apply(z, y, generator())[1]
    assert torch.equal(receipt.order.flatten().sort().values, torch.arange(z[..., 0].numel()))  # type: ignore[union-attr]


def test_what_stands_beside_a_claim_is_given_with_it() -> None:
    z, y = inputs(GaussianNoise())
    both = claim(chain("gaussian_noise", "patch_shuffle"), z, y)
    assert "log10_permutations" in both.quantities
    assert any(line.startswith("patch_shuffle beside it: ") for line in both.assumptions)
    labels = claim(chain("gaussian_noise", "grad_perturb:clip=.1,noise=1.0"), z, y)
    assert labels.covers == "release"
    alone = claim(chain("grad_perturb:clip=.1,noise=1.0"), z, y)
    assert labels.quantities["labels_epsilon"] == alone.epsilon
    released = claim(chain("gaussian_noise"), z, y).quantities["gdp_mu"]
    assert labels.quantities["gdp_mu"] == released != alone.quantities["gdp_mu"]  # of what the certificate covers
    only = claim(chain("patch_shuffle", "grad_perturb:clip=.1,noise=1.0"), z, y)
    assert (only.covers, only.epsilon) == ("labels", alone.epsilon)
    served = claim(chain("gaussian_noise", "masking"), z, y)
    assert any(line == "masking at the server is post-processing and earns no credit" for line in served.assumptions)


@pytest.mark.parametrize("clip_by", ["coordinate", "image"])
def test_who_holds_one_part_has_its_own_epsilon(clip_by: str) -> None:
    z, y = inputs(GaussianNoise())
    found = claim(chain(f"gaussian_noise:clip_by={clip_by}", "patch_shuffle", "split_parts:parts=4"), z, y)
    alone = claim(GaussianNoise(clip_by=clip_by), z, y)  # type: ignore[arg-type]
    assert found.epsilon == alone.epsilon
    part = claim(GaussianNoise(clip_by=clip_by), z[..., :1], y).epsilon if clip_by == "coordinate" else alone.epsilon  # type: ignore[arg-type]
    assert {name: value for name, value in found.quantities.items() if name.startswith("epsilon_")} == {
        f"epsilon_part_{number}": part for number in (1, 2, 3, 4)
    }


@pytest.mark.parametrize("cut", ["parts=4", "parts=4,by=places"])
@pytest.mark.parametrize("stage", [d for d in DEFENSES if d.level != "input"], ids=lambda d: d.name)
def test_a_part_with_an_epsilon_of_its_own_holds_no_more_of_a_record_than_is_charged(stage: Defense, cut: str) -> None:
    """What a stage between noise and split moves of one record into a part, counted in coordinates."""
    place = "mixer" if stage.place == "mixer" else "client"
    try:
        noisy = chain("gaussian_noise", stage.name, f"split_parts:{cut}@{place}")
    except UsageError:
        return
    quiet = chain(stage.name, f"split_parts:{cut}@{place}")
    z, y = inputs(noisy)
    found, whole = claim(noisy, z, y).quantities, claim(noisy, z, y).epsilon
    other = z.clone()
    other[(0,) * (z.ndim - 2)] += 1
    a, b = (quiet.apply(data, y, generator(1))[0].smashed.flatten(0, 1) for data in (z, other))
    for part in quiet.storages:
        moved = int((held_parts(a, quiet, (part,)) != held_parts(b, quiet, (part,))).sum())
        assert moved <= TOKENS * DIM // 4 or found[f"epsilon_{part}"] == whole


def test_a_part_of_places_has_its_own_epsilon_until_a_shuffle_moves_tokens_into_it() -> None:
    z, y = inputs(GaussianNoise())
    alone = claim(GaussianNoise(clip_by="coordinate"), z[..., :4, :], y).epsilon
    for between, expected in (((), alone), (("patch_shuffle",), None), (("batch_shuffle",), None)):
        found = claim(chain("gaussian_noise", *between, "split_parts:parts=4,by=places"), z, y)
        assert found.quantities["epsilon_part_2"] == (expected or found.epsilon)
    assert alone < found.epsilon


def epsilons_of(defense: Defense, images: Tensor, often: ReleaseCount) -> set[float]:
    lower = nn.Sequential(nn.Flatten(), nn.Linear(64, 8, bias=False))
    edge = Clients.build(
        lower, defense, Images(shape=(1, 8, 8)), classes=CLASSES, seed=0, protocol=SplitProtocol(clients=len(images))
    )
    found = edge.release(images, torch.zeros(images.shape[:2], dtype=torch.int64), generator()).receipt
    certificate = found.certificate(often)
    assert certificate.kind == "differential_privacy"
    return {certificate.epsilon, *(v for k, v in certificate.quantities.items() if k.startswith("epsilon_part_"))}


def test_a_part_that_tells_of_the_others_has_the_epsilon_of_the_whole() -> None:
    """A lower segment spreads the noisy image over all channels; a server teaches other clients what all parts said."""
    images = torch.rand(2, 4, 1, 8, 8, generator=generator())
    on_images = chain("dp_mixsl:level=input,group=1,bound=1,sigma=50", "split_parts@mixer")
    assert len(epsilons_of(on_images, images[:1], replace(RUN, clients=1))) == 1
    behind = chain("gaussian_noise:sigma=50", "split_parts")
    assert len(epsilons_of(behind, images, replace(RUN, lower_model="trained"))) == 1
    assert len(epsilons_of(behind, images[:1], replace(RUN, lower_model="trained", clients=1))) == 2
    assert len(epsilons_of(behind, images, RUN)) == 2
