"""Clients whose training a server leads: they learn under an honest one, and go on bit for bit after a stop."""

from dataclasses import replace

import pytest
import torch
from torch import Generator

from privkit.attacks.base import NotApplicable
from privkit.attacks.hijack.hijack_detection import SplitGuard
from privkit.defenses.none import NoDefense
from privkit.domains.partition import Iid
from privkit.training import SplitProtocol, TrainingSpec
from privkit.wire.hijack import LiveClients, serve
from tests.small import fitted, random_images


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    "protocol", [SplitProtocol(), SplitProtocol(clients=2, average="round"), SplitProtocol(clients=2)]
)
def test_live_clients_under_an_honest_server_learn_the_task(protocol: SplitProtocol) -> None:
    edge, upper = fitted(NoDefense(), protocol)
    data, spec = random_images(40, 10), TrainingSpec(batch_size=10, learning_rate=3e-3)
    clients = LiveClients(edge, data, Iid().assign(data.y, protocol.clients, 0), spec, data[:20], 0)
    losses = serve(clients, upper, 80, spec)
    assert sum(losses[-5:]) / 5 < 0.8 * sum(losses[:5]) / 5
    assert sum(len(view.smashed) for view in clients.views()) == 20


def test_live_clients_go_on_bit_for_bit_and_refuse_what_cannot_be_hijacked() -> None:
    data, spec = random_images(40, 10), TrainingSpec(batch_size=10)
    shares = Iid().assign(data.y, 1, 0)

    def fresh() -> LiveClients:
        return LiveClients(fitted(NoDefense(), SplitProtocol())[0], data, shares, spec, data[:10], 0)

    whole, part, rest = fresh(), fresh(), fresh()
    for clients in (whole, part, rest):
        clients.guard = SplitGuard(generator=Generator().manual_seed(0), patience=1, group=1, warm_up=0)
    push = lambda view: view.smashed.sign() / view.smashed.numel()  # noqa: E731
    for _ in range(60):
        whole.round(push)
    for _ in range(30):
        part.round(push)
    rest.load_state_dict(part.state_dict())
    for _ in range(30):
        rest.round(push)
    for clients in (whole, rest):
        assert clients.guard is not None
        assert len(clients.guard.scores) > 1
        assert clients.guard.scores == whole.guard.scores  # type: ignore[union-attr]
    assert torch.equal(whole.views()[0].smashed, rest.views()[0].smashed)
    assert not torch.equal(whole.views()[0].smashed, fresh().views()[0].smashed)
    with pytest.raises(ValueError, match="a gradient at the cut must be"):
        fresh().round(lambda view: view.smashed[:1])
    edge = fitted(NoDefense(), SplitProtocol())[0]
    with pytest.raises(NotApplicable, match="do not learn"):
        LiveClients(edge, data, shares, replace(spec, freeze_lower=True), data[:10], 0)
