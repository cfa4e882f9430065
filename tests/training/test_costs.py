"""What one client sends, receives and computes in a round, counted for every protocol and place of a mask."""

from typing import Any

import pytest

from privkit.defenses.base import Defense
from privkit.defenses.chain import Chain
from privkit.defenses.cutmix import RandomCutMix
from privkit.defenses.cutout import RandomCutout
from privkit.defenses.dp_cutmixsl import DpCutMixSl
from privkit.defenses.fedpass import FedPass
from privkit.defenses.noise import GaussianNoise
from privkit.defenses.none import NoDefense
from privkit.defenses.orthogonal import OrthogonalMap
from privkit.defenses.patch_shuffle import PatchShuffle
from privkit.shared.costs import Costs
from privkit.training import SplitProtocol, TrainingSpec
from privkit.training.costs import client_costs
from tests.small import built, digits

INF = float("inf")
LABEL = 10 * 4  # bytes of a mixed label


def counted(defense: Defense | None = None, **options: Any) -> Costs:
    edge, upper = built(defense or NoDefense(), SplitProtocol(**options))
    return client_costs(edge, digits(), TrainingSpec(batch_size=5), rounds_an_epoch=4, seed=0, upper=upper)


ALL = counted().bytes_up


@pytest.mark.parametrize(
    ("defense", "share", "seed"),
    [
        (RandomCutout(), 0.5, 8),
        (RandomCutout(place="mixer"), 1, 0),
        (RandomCutout(place="server"), 1, 0),
        (Chain(stages=(PatchShuffle(), RandomCutout(place="server"))), 1, 0),
        (Chain(stages=(RandomCutMix(concentration=INF), RandomCutout(place="mixer"))), 0.5, 8),
        (Chain(stages=(RandomCutout(), RandomCutMix(concentration=INF))), 0.25, 8),
        (Chain(stages=(RandomCutout(), DpCutMixSl(concentration=INF, site="mixer"))), 0.25, 8),
        (Chain(stages=(RandomCutout(), DpCutMixSl(concentration=INF))), 0.5, 8),  # its noise fills what was cut
        (Chain(stages=(RandomCutout(), GaussianNoise())), 1, 8),
        (Chain(stages=(RandomCutout(), GaussianNoise(place="mixer"))), 0.5, 8),
        (Chain(stages=(RandomCutout(), FedPass())), 1, 8),
        (Chain(stages=(RandomCutout(), OrthogonalMap(keep=0.5))), 0.25, 8),
        (Chain(stages=(OrthogonalMap(keep=0.25), OrthogonalMap(keep=0.5))), 0.5, 0),
        (Chain(stages=(OrthogonalMap(keep=0.25), GaussianNoise())), 1, 0),
        (DpCutMixSl(place="server", site="mixer"), 1, 0),
    ],
)
def test_only_masks_that_clients_know_save_bytes(defense: Defense, share: float, seed: int) -> None:
    found = counted(defense, clients=2)
    assert found.bytes_up - LABEL * any(map(_mixes, getattr(defense, "stages", (defense,)))) == ALL * share
    assert (found.bytes_down, found.bytes_seed) == (ALL * share, seed)


def _mixes(stage: Defense) -> bool:
    return stage.group > 1 and stage.place == "mixer"


def test_a_round_of_several_messages_sends_each_of_them_and_one_gradient() -> None:
    mixed = RandomCutMix(concentration=INF)
    for clients, messages, up, down in ((4, 2, 1.0, 0.5), (5, 9 / 5, 1.0, 3 / 5)):  # the fifth sends one, unmixed
        found = counted(mixed, clients=clients, updates="message")
        assert found.bytes_up == pytest.approx(ALL * up + LABEL * messages)
        assert found.bytes_down == pytest.approx(ALL * down)
        assert found.bytes_seed == round(8 * messages)
    assert counted(clients=4, updates="message") == counted(clients=4)


def test_a_standalone_client_trains_the_whole_network_and_sends_nothing() -> None:
    alone, split = counted(clients=2, upper="own"), counted(clients=2)
    assert alone.a_round(batch_size=5) == (0, 0)
    edge, upper = built(NoDefense())
    weights = [weight for part in (edge, upper) for weight in part.parameters()]
    assert alone.client_parameters == sum(weight.numel() for weight in weights)
    # the first layer needs no gradient of the image, and every other product has two
    assert alone.client_training_macs - split.client_training_macs == 3 * (alone.client_macs - split.client_macs)


def test_a_segment_that_is_handed_on_crosses_once_a_round() -> None:
    assert counted(clients=1, lower="handed_on").bytes_up_model == 0
    found = counted(clients=3, lower="handed_on")
    weights = sum(weight.numel() for weight in built(NoDefense())[0].parameters())
    assert found.bytes_up_model == found.bytes_down_model == 4 * weights
