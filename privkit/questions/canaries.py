"""Which of two contents was sent? One run of canaries, and its lower bound on ε, held against the claim."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from privkit.accountants.base import Certificate, no_protection
from privkit.attacks.base import NotApplicable, Query, View
from privkit.attacks.canaries import CanaryKnowledge
from privkit.auditing import Audit, audit_one_run
from privkit.channel import black_box_query, record
from privkit.questions.scene import Scene, planted, told_apart
from privkit.reports.schema import Empirical, Gate, Row
from privkit.seeds import derive
from privkit.training import Edge
from privkit.transcript import Recorder

EXPECTED_FROM = 8
"""Releases without noise whose mean is what a canary's row is expected to hold; more than one for a shuffle's sake."""
CONTROL_CANARIES, CONTROL_SIZE = 400, 16


@dataclass(frozen=True, kw_only=True)
class Sending:
    """A run of canaries.

    Attributes:
        views: what the adversary saw.
        rows: int64 [R, K], where canary i, or its counterpart, was the r-th time.
        present: [K, ...], what that row is expected to hold with the canary.
        absent: [K, ...], and with its counterpart.
        claim: that such canaries test.
    """

    views: list[View]
    rows: Tensor
    present: Tensor
    absent: Tensor
    claim: Certificate


def ask(scene: Scene) -> Row:
    """Send every attacked image, or its counterpart, as often as the run sends a record, and tell which it was.

    Raises:
        NotApplicable: if nothing is sent, or the claim is of another kind than these canaries test.
    """
    attack, edge, seed = scene.attack, scene.model.edge, scene.cell.seed
    if edge.protocol.upper == "own":
        raise NotApplicable("standalone clients send nothing, so there is nothing to attack")
    if scene.certificate.relation == "add_or_remove_one":
        raise NotApplicable("the claim is of adding or removing a record, and these canaries replace one by another")
    gates = scene.controls(lambda: controls(attack, seed))
    scene.begin()
    draws = Generator().manual_seed(derive(seed, "canaries"))
    coins = torch.rand(len(scene.setting.victims), generator=draws) < 0.5
    sending = (smashed if attack.on == "smashed" else gradients)(scene, coins, draws)
    knowledge = CanaryKnowledge(
        image_shape=scene.setting.splits.image_shape,
        batch_size=scene.round_size,
        rows=sending.rows,
        present=sending.present,
        absent=sending.absent,
    )
    scores = attack.run(sending.views, knowledge, scene.generator())
    claim = sending.claim
    found = audit_one_run(
        scores.values.cpu().numpy(),
        coins.numpy(),
        claim,
        delta=scene.config.delta if claim.delta is None else None,
    )
    return scene.row.model_copy(
        update={
            "answers": told_apart(scores, coins),
            "empirical": empirical(found),
            "gates": (*gates, judged(found)),
        }
    )


def smashed(scene: Scene, coins: Tensor, draws: Generator) -> Sending:
    """Canaries are images, their counterparts the auxiliary images that are released most differently."""
    edge, setting, size = scene.model.edge, scene.setting, scene.round_size
    victims, others = setting.victims, setting.auxiliary.x
    query = black_box_query(_quiet(edge))
    present = expected(query, victims.x, size, draws)
    candidates = expected(query, others[: len(others) // size * size], size, draws)
    farthest = torch.cdist(present.flatten(1), candidates.flatten(1)).argmax(1)
    images = torch.where(coins.view(-1, 1, 1, 1).to(victims.x.device), victims.x, others[farthest])
    sent = record(
        edge,
        replace(victims, x=images),
        batch_size=scene.config.training.batch_size,
        seed=derive(scene.cell.seed, "canaries", "sent"),
        passes=scene.exposure.epochs,
    )
    members = sent.members.view(scene.exposure.epochs, -1)
    rows = _rows(members, len(victims), sent.views[0].mixed)
    claim = scene.certificate if scene.certificate.covers == "release" else no_protection()
    return Sending(views=sent.views, rows=rows, present=present, absent=candidates[farthest], claim=claim)


def gradients(scene: Scene, coins: Tensor, draws: Generator) -> Sending:
    """Canaries are labels: the gradient that comes back for an image is asked which of two labels it had.

    The trained model stands still meanwhile, so that this is a lower bound on what a run of as many rounds gives away.
    """
    edge, victims = scene.model.edge, scene.setting.victims
    if edge.defense.group > 1:
        raise NotApplicable("canaries on=gradient asks for one label a row, and mixed rows have several")
    step = torch.randint(1, max(2, edge.classes), (len(victims),), generator=draws).to(victims.y.device)
    other = (victims.y + step) % edge.classes
    chosen = torch.where(coins.to(victims.y.device), victims.y, other)
    quiet = _quiet(edge)
    present, absent = (_returned(quiet, scene, labels, 1, draws)[0].cut_gradient for labels in (victims.y, other))
    assert present is not None
    assert absent is not None
    times = scene.exposure.epochs
    views = _returned(edge, scene, chosen, times, draws)
    rows = torch.arange(times * len(victims)).view(times, -1)
    claim = scene.certificate if scene.certificate.covers == "labels" else no_protection()
    return Sending(views=views, rows=rows, present=present, absent=absent, claim=claim)


def empirical(found: Audit) -> Empirical:
    """The audit as a row tells it."""
    bound = found.bound
    return Empirical(
        claimed=found.claimed,
        epsilon=bound.epsilon,
        delta=bound.delta,
        confidence=bound.confidence,
        canaries=found.canaries,
        inserted=found.inserted,
        statement=found.sentence,
    )


def judged(found: Audit) -> Gate:
    """The gate that fails the run when the bound exceeds the claim."""
    return Gate(name="claim_stands", passed=not found.refuted, detail=found.sentence, decisive=True)


def controls(attack, seed: int) -> tuple[Gate, ...]:  # type: ignore[no-untyped-def]
    """Canaries that are sent as they are; and rows of pure noise."""
    draws = Generator().manual_seed(seed)
    present, absent = torch.randn(2, CONTROL_CANARIES, CONTROL_SIZE, generator=draws)
    coins = torch.rand(CONTROL_CANARIES, generator=draws) < 0.5
    noise = torch.randn(CONTROL_CANARIES, CONTROL_SIZE, generator=draws)
    known = CanaryKnowledge(
        image_shape=(1, 4, 4),
        batch_size=CONTROL_CANARIES,
        rows=torch.arange(CONTROL_CANARIES).unsqueeze(0),
        present=present,
        absent=absent,
    )
    found = []
    for rows in (torch.where(coins.unsqueeze(1), present, absent), noise):
        view = View(round=0, smashed=rows, cut_gradient=rows)
        found.append(attack.run([view], known, Generator().manual_seed(seed)))
    return planted(found[0], coins, found[1], coins)


def expected(query: Query, images: Tensor, size: int, draws: Generator) -> Tensor:
    """The mean row that each image is released in, [N, ...], over several queries of `size` images a round."""
    device = images.device
    own = Generator(device).manual_seed(int(torch.randint(2**31, (1,), generator=draws)))
    means = []
    for part in images.split(size):
        total, count = None, torch.zeros(len(part), device=device)
        for _ in range(EXPECTED_FROM):
            answer = query(part, own)
            row, seat = (answer.members >= 0).nonzero(as_tuple=True)
            member, rows = answer.members[row, seat], answer.view.smashed[row]
            total = rows.new_zeros(len(part), *rows.shape[1:]) if total is None else total
            total.index_add_(0, member, rows)
            count.index_add_(0, member, torch.ones_like(member, dtype=count.dtype))
        assert total is not None
        means.append(total / count.view(-1, *[1] * (total.ndim - 1)))
    return torch.cat(means)


def _returned(edge: Edge, scene: Scene, labels: Tensor, times: int, draws: Generator) -> list[View]:
    """Rounds of training without a step, their gradients in one view for each time that all images were sent."""
    victims, upper = scene.setting.victims, deepcopy(scene.model.upper).eval()
    clients, own = edge.lowers.copies, deepcopy(edge).eval()
    device = victims.x.device
    draws = Generator(device).manual_seed(int(torch.randint(2**31, (1,), generator=draws)))
    rounds = torch.arange(len(victims), device=device).view(-1, clients, scene.config.training.batch_size)
    views = []
    for time in range(times):
        recorder = Recorder()
        for number, rows in enumerate(rounds):
            recorder(own, upper, victims.x[rows], labels[rows], draws, number=number)
        found = recorder.views
        views.append(
            View(
                round=time,
                smashed=torch.cat([view.smashed for view in found]),
                cut_gradient=torch.cat([view.cut_gradient for view in found if view.cut_gradient is not None]),
            )
        )
    return views


def _rows(members: Tensor, count: int, mixed: int) -> Tensor:
    """Where each image was in each pass, int64 [R, K], from the image on each seat [R, N·k]."""
    passes, seats = members.shape
    at = torch.arange(passes * seats, device=members.device).view(passes, seats) // mixed
    spare = torch.where(members >= 0, members, count)  # empty seats write to a place of their own
    return members.new_zeros(passes, count + 1).scatter(1, spare, at)[:, :count].cpu()


def _quiet(edge: Edge) -> Edge:
    """The same clients with noise too small to matter, for what a row is expected to hold."""
    quiet = deepcopy(edge).eval()
    quiet.defense = edge.defense.quiet()
    return quiet
