"""Chains of defenses: every ordered pair of registered defenses runs with a true certificate, or is refused."""

import json
from dataclasses import replace
from itertools import product
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from privkit.defenses.base import Release
from privkit.defenses.batch_shuffle import BatchShuffle
from privkit.defenses.chain import Chain, stages_of
from privkit.defenses.compile import run
from privkit.defenses.noise import GaussianNoise
from privkit.defenses.none import NoDefense
from privkit.errors import Misbehaved, UsageError
from privkit.parts.registry import Component, parse
from privkit.settings.pairing import defense_pairs
from privkit.settings.resolve import resolve
from tests.defenses.chains import DEFENSES, NAMES, claim, inputs, made, trusted_noise
from tests.small import generator

pytestmark = pytest.mark.usefixtures("closed_forms")


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
            least = min((c.epsilon for c in alone if c.covers == "release"), default=0)
            if noisy and "shortens" in (built.stages[0].effects or ()):
                assert found.epsilon <= least  # fewer coordinates, each of which is bounded
            elif noisy and not {"spectral_shuffle", "clip"} & {stage.name for stage in built.stages}:
                assert found.epsilon == least
        elif "clips" in (built.stages[0].effects or ()) and trusted_noise(built.stages[1]):
            assert found.kind == "differential_privacy"  # noise without a clip of its own
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


REFUSED = [
    ("scaling+gaussian_noise", "gaussian_noise runs at the client, but scaling before it runs at the server"),
    ("gaussian_noise:clip=none+clip", "clip after gaussian_noise does not bound what the noise hides"),
    ("gaussian_noise+laplace_noise", "both add noise to the smashed data: no ε was derived"),
    (
        "batch_shuffle+gaussian_noise:clip_by=image",
        "so gaussian_noise would bound or change a row and not a record; bound each coordinate",
    ),
    ("batch_shuffle+clip:clip_by=image+gaussian_noise", "so clip would bound or change a row"),
    ("batch_shuffle+scaling@client+gaussian_noise", "scaling would bound or change a row and not a record"),
    ("patch_shuffle+random_cutout", "counts the orders of all tokens of an image, but random_cutout drops some"),
    ("patch_shuffle+mixup", "mixes several clients' into a message"),
    ("patch_shuffle+batch_shuffle", "the orders of two shuffles are not counted"),
    ("mixup+random_cutmix", "a round has one set of groups"),
    ("dp_sl+grad_perturb", "lets clients send them mixed or noised"),
    ("nopeek+mixup:level=input", "nopeek before it takes smashed data; put it first"),
    ("dp_mixsl:level=input,group=1+nopeek@client", "nopeek runs at the client, but dp_mixsl"),
    ("gaussian_noise+blur", "blur takes images, but gaussian_noise before it takes smashed data"),
    ("clip+gaussian_noise:noise_in_place=true", "falsifies the gradient of the stages before it"),
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
    with pytest.raises(UsageError, match="move sigma to one of its stages"):
        resolve({"defense": [{"stages": stages, "sigma": 3}]})


def labels_of(given: object) -> list[tuple[str, list[str]]]:
    def shown(part: tuple[Component, ...]) -> list[str]:
        return [component.label for component in part]

    return [(protocol.label, shown(part)) for protocol, part in defense_pairs([given], None)]


def test_a_chain_has_one_protocol() -> None:
    assert labels_of("gaussian_noise+mixup")[0][0] == "cutmixsl"
    label = "gaussian_noise:protocol=psl+masking"
    ((protocol, found),) = labels_of(label)
    assert (protocol, found[1]) == ("psl", label)
    with pytest.raises(UsageError, match="a chain runs under one protocol"):
        defense_pairs(["gaussian_noise:protocol=sl+masking:protocol=psl"], None)


class Halved(NoDefense):
    """It sends half precision, which no server's layer reads."""

    name: ClassVar[str] = "halved"

    def apply(self, smashed: Tensor, *given: Any) -> Any:
        release, receipt = super().apply(smashed, *given)
        return replace(release, smashed=release.smashed.half()), receipt


def test_a_stage_keeps_the_precision_of_its_data() -> None:
    made = Release(smashed=torch.rand(1, 2, 3, 4), labels=torch.zeros(1, 2, dtype=torch.int64))
    with pytest.raises(Misbehaved, match=r"halved must release torch\.float32, as it got, and not torch\.float16; end"):
        run((Halved(),), made, generator())
