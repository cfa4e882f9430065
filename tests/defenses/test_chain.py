"""Chains of defenses: every ordered pair of registered defenses runs with a true certificate, or is refused."""

import json
from dataclasses import replace
from functools import cache
from itertools import permutations, product
from math import inf

import pytest
import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import one_hot

from privkit.accountants.spec.parts import PrivateUpdates
from privkit.certificate import Certificate
from privkit.defenses import charge
from privkit.defenses.base import Defense, Release, ReleaseCount
from privkit.defenses.batch_shuffle import BatchShuffle
from privkit.defenses.chain import Chain, run, stages_of
from privkit.defenses.gaussian_noise import GaussianNoise
from privkit.domains.images.domain import Images
from privkit.errors import UsageError
from privkit.pairing import paired
from privkit.registry import Component, load, parse, table
from privkit.settings import resolve
from privkit.training.edge import Clients
from privkit.training.protocol import SplitProtocol
from privkit.wire.channel import answer_of, holds_all, shared_lower

CLASSES, TOKENS, DIM, BATCH = 3, 16, 4, 3
DEFENSES: list[Defense] = [
    load(target)() for name, target in sorted(table("defenses").items()) if name not in ("none", "spectral_shuffle")
] + [load(table("defenses")["spectral_shuffle"])()]
NAMES = [defense.name for defense in DEFENSES]
RUN = ReleaseCount(rounds=6, epochs=2, batch_size=BATCH, clients=2)


def generator(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def chain(*stages: str) -> Defense:
    spec: Defense = parse("defenses", list(stages)).spec
    return spec


def claim(defense: Defense, z: Tensor, y: Tensor) -> Certificate:
    return defense.apply(z, y, generator())[1].certificate(RUN)


def inputs(defense: Defense, dtype: torch.dtype = torch.float32, batch: int = BATCH) -> tuple[Tensor, Tensor]:
    lead = (1, defense.group, batch) if defense.group > 1 else (2, batch)
    shape = (1, 28, 28) if defense.level == "input" else (TOKENS, DIM)
    labels = torch.arange(lead[-1]).expand(lead) % CLASSES
    data = torch.rand(*lead, *shape, generator=generator(9), dtype=dtype)
    return data, one_hot(labels, CLASSES).to(dtype) if defense.soft_labels else labels


@cache
def made(first: int, second: int) -> Chain | str:
    try:
        return Chain(stages=(DEFENSES[first], DEFENSES[second]))
    except ValueError as error:
        return str(error)


def trusted_noise(defense: Defense) -> bool:
    noisy = "noises" in (defense.effects or ())
    return noisy and (defense.place != "server" or getattr(defense, "site", "") == "client")


@pytest.fixture(autouse=True)
def _without_composition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charge, "WORTH_COMPOSING", 0.0)  # closed forms are as good here, and fast


@pytest.mark.parametrize("first", range(len(DEFENSES)), ids=NAMES)
def test_every_ordered_pair_has_the_claim_of_its_rule_or_a_sentence(first: int) -> None:
    accepted = 0
    for second, other in enumerate(DEFENSES):
        built = made(first, second)
        if isinstance(built, str):
            assert len(built) > 30
            assert DEFENSES[first].name in built or other.name in built
            continue
        if built.level == "both":
            continue  # `test_every_stage_may_follow_one_on_images`
        accepted += 1
        z, y = inputs(built)
        found = claim(built, z, y)
        alone = [
            claim(stage, *inputs(stage)) for stage in stages_of(built) if stage.effects and stage.place != "server"
        ] + [claim(stage, *inputs(stage)) for stage in stages_of(built) if "answers" in (stage.effects or ())]
        kinds = {certificate.kind for certificate in alone}
        if "differential_privacy" in kinds:
            assert found.kind == "differential_privacy"
            noisy = [stage for stage in built.stages if trusted_noise(stage)]
            if noisy and not {"spectral_shuffle", "clip"} & {stage.name for stage in built.stages}:
                assert found.epsilon == min(c.epsilon for c in alone if c.covers == "release")
        else:
            assert found.kind == ("permutation_count" if "permutation_count" in kinds else "nothing")
        json.dumps(found.statement)
    assert accepted or DEFENSES[first].level == "input"


def test_most_pairs_run_and_some_are_refused() -> None:
    refused = [isinstance(made(a, b), str) for a, b in product(range(len(DEFENSES)), repeat=2)]
    assert 100 < sum(refused) < len(refused) - 100


@pytest.mark.parametrize("first", range(len(DEFENSES)), ids=NAMES)
def test_the_gradient_of_the_whole_chain_is_the_derivative(first: int) -> None:
    for second in range(len(DEFENSES)):
        built = made(first, second)
        if isinstance(built, str) or built.level == "both":
            continue
        z, y = inputs(built, torch.float64, batch=2)

        def released(data: Tensor, built: Chain = built, y: Tensor = y) -> Tensor:
            return built.apply(data, y, generator())[0].smashed.tanh()

        assert torch.autograd.gradcheck(released, (z.requires_grad_(),), fast_mode=True), built.name


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


REFUSED = [
    ("scaling+gaussian_noise", "gaussian_noise runs at the client, but scaling before it runs at the server"),
    ("gaussian_noise:clip=none+clip", "clip after gaussian_noise does not bound what the noise hides"),
    ("gaussian_noise+laplace_noise", "both add noise to the smashed data: no ε was derived"),
    (
        "batch_shuffle+gaussian_noise:clip_by=image",
        "gaussian_noise:clip_by=image would bound or change a row and not a record",
    ),
    ("batch_shuffle+clip:clip_by=image+gaussian_noise", "clip:clip_by=image would bound or change a row"),
    ("batch_shuffle+scaling@client+gaussian_noise", "scaling would bound or change a row and not a record"),
    ("patch_shuffle+random_cutout", "counts the orders of all tokens of an image, but random_cutout drops some"),
    ("patch_shuffle+mixup", "mixes several clients' into a message"),
    ("patch_shuffle+batch_shuffle", "nobody counted the orders of two shuffles"),
    ("mixup+random_cutmix", "a round has one set of groups"),
    ("dp_sl+grad_perturb", "lets clients send them mixed or noised"),
    ("nopeek+mixup:level=input", "nopeek before it takes smashed data; put it first"),
    ("dp_mixsl:level=input,group=1+nopeek@client", "nopeek runs at the client, but dp_mixsl"),
    ("gaussian_noise+blur", "blur takes images, but gaussian_noise before it takes smashed data"),
    ("gaussian_noise:noise_in_place=true+scaling", "falsifies the gradient of the stages before it"),
    ("random_cutout:level=input+random_cutout", "give them the same level"),
    ("patch_shuffle:frozen_block=true+split_parts", "carries each channel into all others behind the split"),
    ("none+clip", "leave it out of the chain"),
    ("adv+adv", "a client trains one simulated attacker"),
    ("blur@server+clip", "blur runs at the client only"),
    ("gaussian_noise@sever+masking", "place should be 'client', 'mixer' or 'server', got 'sever'"),
    ("gaussian_noise+maskin", "did you mean 'masking'"),
    ("gaussian_noise:sigm=1+masking", "did you mean 'sigma'"),
    ("gaussian_noise+", "unknown defense ''"),
]


@pytest.mark.parametrize(("text", "reason"), REFUSED)
def test_refusals_say_why(text: str, reason: str) -> None:
    with pytest.raises(UsageError) as error:
        resolve({"defense": text})
    assert reason in str(error.value)


def test_a_defense_that_declares_no_effects_is_used_alone() -> None:
    class Foreign(GaussianNoise):
        effects = None  # type: ignore[assignment]

    with pytest.raises(ValueError, match="declares no `effects`"):
        Chain(stages=(Foreign(), BatchShuffle()))


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
    only = claim(chain("patch_shuffle", "grad_perturb:clip=.1,noise=1.0"), z, y)
    assert (only.covers, only.epsilon) == ("labels", alone.epsilon)
    served = claim(chain("gaussian_noise", "masking"), z, y)
    assert any(line == "masking at the server is post-processing and earns nothing" for line in served.assumptions)


class Patches(nn.Module):
    """Tokens from images of 8×8, without weights that matter."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, images: Tensor) -> Tensor:
        return self.scale * images.unfold(2, 2, 2).unfold(3, 2, 2).flatten(4).movedim(1, -2).flatten(-2).flatten(1, 2)


def clients_of(*stages: str, clients: int = 2) -> Clients:
    protocol = SplitProtocol(clients=clients, grouping="random")
    return Clients.build(
        Patches(), chain(*stages), Images(shape=(1, 8, 8)), classes=CLASSES, seed=0, protocol=protocol
    ).eval()


def test_the_wire_shows_what_arrives_and_not_what_the_server_makes_of_it() -> None:
    images, labels = torch.rand(2, 4, 1, 8, 8, generator=generator()), torch.zeros(2, 4, dtype=torch.int64)
    noisy = clients_of("gaussian_noise").release(images, labels, generator(1))
    chained = clients_of("gaussian_noise", "scaling:factor=.5").release(images, labels, generator(1))
    assert torch.equal(chained.arrived.smashed, noisy.release.smashed)
    assert torch.equal(chained.release.smashed, 0.5 * noisy.release.smashed)
    edge = clients_of("dp_sl", "mixup@mixer", "scaling")
    sent = edge.release(images, labels, generator(1))
    seen = answer_of(sent, 0, edge)
    assert seen.view.smashed.shape == (4, 16, 4)
    assert seen.view.mixed == 2
    assert seen.view.weights is not None
    assert torch.equal(sent.release.smashed.flatten(0, 1), 0.2 * seen.view.smashed)
    alone = clients_of("dp_mixsl:site=client@server", "scaling").release(images, labels, generator(1))
    assert alone.arrived.smashed.shape == alone.smashed.shape
    assert (alone.groups.shape, alone.arrived_groups.shape) == ((1, 2), (2, 1))


@pytest.mark.parametrize("name", ["dp_mixsl:group=3,site=client", "dp_cutmixsl:group=3"])
def test_a_server_that_mixes_gets_the_labels_with_the_noise_of_their_clients(name: str) -> None:
    """Its claim covers labels, so that none may arrive as it is; without noise on labels the claim says so."""
    images, labels = torch.rand(4, 5, 1, 8, 8, generator=generator()), torch.arange(5).expand(4, 5) % CLASSES
    for chained in ((), ("scaling",)):
        sent = clients_of(f"{name},sigma_labels=.01@server", *chained, clients=4).release(images, labels, generator(1))
        certificate = sent.receipt.certificate(RUN)
        assert certificate.kind == "differential_privacy"
        assert charge.GIVEN_LABELS not in certificate.assumptions
        arrived = sent.arrived.labels
        assert arrived.shape == (4, 5, CLASSES)
        apart = (arrived - one_hot(labels, CLASSES)).abs()
        assert 0 < apart.min() <= apart.max() < 0.1
    open_ones = clients_of(f"{name},sigma_labels=none@server", clients=4).release(images, labels, generator(1))
    assert charge.GIVEN_LABELS in open_ones.receipt.certificate(RUN).assumptions
    assert torch.equal(open_ones.arrived.labels, labels)


def test_images_and_smashed_data_are_defended_in_one_chain() -> None:
    images, labels = torch.rand(2, 4, 1, 8, 8, generator=generator()), torch.zeros(2, 4, dtype=torch.int64)
    edge = clients_of("blur:factor=2", "nopeek", "gaussian_noise:sigma=2.0", "patch_shuffle")
    sent = edge.release(images, labels, generator(1))
    assert sent.penalty is not None
    certificate = sent.receipt.certificate(RUN)
    assert certificate.kind == "differential_privacy"
    assert {"height", "log10_permutations"} <= certificate.quantities.keys()
    known = edge.client(0)(images[0])
    assert known.shape == (4, 16, 4)
    assert known.abs().max() <= 1
    with pytest.raises(ValueError, match="run it through Clients"):
        edge.defense.apply(images, labels, generator())


@pytest.mark.parametrize("name", [d.name for d in DEFENSES if d.level != "input" and d.name != "blur"])
def test_every_stage_may_follow_one_on_images(name: str) -> None:
    images, labels = torch.rand(2, 4, 1, 8, 8, generator=generator()), torch.zeros(2, 4, dtype=torch.int64)
    edge = clients_of("blur:factor=2", name)
    sent = edge.release(images, labels, generator(1))
    blurred = clients_of("blur:factor=2").release(images, labels, generator(1)).smashed
    assert torch.equal(sent.smashed, blurred)
    alone = clients_of(name).release(images, labels, generator(1)).receipt.certificate(RUN)
    found = sent.receipt.certificate(RUN)
    assert (found.kind, found.epsilon, found.covers) == (alone.kind, alone.epsilon, alone.covers)


def test_masks_and_ratios_multiply_to_the_weights_of_a_release() -> None:
    images, labels = torch.rand(2, 4, 1, 8, 8, generator=generator()), torch.zeros(2, 4, dtype=torch.int64)
    edge = clients_of("random_cutout", "mixup")
    sent = edge.release(images, labels, generator(1))
    weights = sent.release.weights
    assert weights is not None
    assert weights.shape == (1, 2, TOKENS)
    whole = edge.lowers(images)[sent.groups[0]]
    torch.testing.assert_close((weights[0, :, None, :, None] * whole).sum(0), sent.release.smashed[0])


def test_test_images_pass_the_stages_that_are_meant_for_them() -> None:
    images, labels = torch.rand(2, 4, 1, 8, 8, generator=generator()), torch.zeros(2, 4, dtype=torch.int64)
    edge = clients_of("clip:bound=.1", "mixup", "scaling:factor=.5")
    torch.testing.assert_close(edge.infer(images, labels, generator()), 0.5 * edge.lowers(images).clamp(-0.1, 0.1))


@pytest.mark.parametrize(
    "text",
    ["gaussian_noise:sigma=2.0+masking:keep=0.5", "dp_sl@mixer+scaling@mixer", "clip+batch_shuffle+dp_sl+masking"],
)
def test_labels_and_json_name_the_chain_again(text: str) -> None:
    component = parse("defenses", text)
    assert component.label == text
    again = parse("defenses", json.loads(json.dumps(component.to_json())))
    assert again == component
    assert parse("defenses", component.label) == component
    assert resolve({"defense": [text, text]}).defenses[1:] == (component,)


def test_a_file_gives_a_chain_as_a_list_of_tables() -> None:
    stages = [{"name": "gaussian_noise", "sigma": 2}, {"name": "masking", "place": "client"}]
    for given in ([stages], [{"stages": stages}]):
        (component,) = resolve({"defense": given}).defenses[1:]
        assert component.label == "gaussian_noise:sigma=2.0+masking@client"
    with pytest.raises(UsageError, match="move sigma to one of them"):
        resolve({"defense": [{"stages": stages, "sigma": 3}]})


def labels_of(given: object) -> list[tuple[str, list[str]]]:
    def shown(part: tuple[Component, ...]) -> list[str]:
        return [component.label for component in part]

    return [(protocol.label, shown(part)) for protocol, part in paired([given], None)]


def test_a_chain_has_one_protocol() -> None:
    assert labels_of("gaussian_noise+mixup")[0][0] == "cutmixsl"
    label = "gaussian_noise:protocol=psl+masking"
    ((protocol, found),) = labels_of(label)
    assert (protocol, found[1]) == ("psl", label)
    with pytest.raises(UsageError, match="a chain runs under one protocol"):
        paired(["gaussian_noise:protocol=sl+masking:protocol=psl"], None)


def test_a_view_has_the_parts_that_its_adversary_holds() -> None:
    images, labels = torch.rand(2, 4, 1, 8, 8, generator=generator()), torch.zeros(2, 4, dtype=torch.int64)
    edge = clients_of("gaussian_noise", "split_parts:parts=3", "scaling:factor=.5")
    sent = edge.release(images, labels, generator(1))
    whole = answer_of(sent, 0, edge).view
    assert whole.parts == ("part_1", "part_2", "part_3")
    edge.held = ("part_3", "part_1")
    view = answer_of(sent, 0, edge).view
    assert view.parts == ("part_1", "part_3")
    assert torch.equal(view.smashed, whole.smashed[..., [0, 1, 3]])
    known = shared_lower(edge)
    assert known is not None
    assert known(images[0]).shape == (4, 16, 3)
    assert not holds_all(edge)


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


def test_parts_that_nobody_holds_are_refused() -> None:
    with pytest.raises(UsageError, match="no defense here splits its release, so nobody holds a part"):
        resolve({"defense": "gaussian_noise", "parts": ["part_1"]})
    with pytest.raises(UsageError, match=r"unknown part of split_parts 'part_3'; did you mean 'part_"):
        resolve({"defense": "split_parts", "parts": ["part_3"]})
    with pytest.raises(UsageError, match="put split_parts behind it"):
        resolve({"defense": "split_parts+gaussian_noise"})
    with pytest.raises(UsageError, match="at least 2"):
        resolve({"defense": "split_parts:parts=1"})
    config = resolve({"defense": "gaussian_noise+split_parts", "parts": "part_2"})
    assert config.held == ("part_2",)
    assert "parts" not in resolve({"defense": "gaussian_noise+split_parts"}).answers()
