"""The goal "distinguish": an attack guesses which of two contents was sent for each canary, for a lower bound on ε."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from math import inf

import torch
from torch import Generator, Tensor, nn

from privkit.accountants.answer import no_protection
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.attacks.base import NotApplicable, Query, View
from privkit.attacks.goals.distinguish import CanaryAttack, CanaryObservation, controls
from privkit.attacks.inversion.known_lower import mixed_release
from privkit.attacks.labels.gradient_matching import label_gradients
from privkit.attacks.outputs import scores_of
from privkit.audit.claims import audit_one_run, claimed_family, limits_of
from privkit.audit.goals.goal import AuditGoal, Cost, Timed
from privkit.audit.goals.trained import TrainedContext, must_get_gradients, must_send, must_send_labels
from privkit.audit.standing import rests_on_rows, rows_where
from privkit.defenses.base import Defense
from privkit.defenses.charge import nothing
from privkit.reports.schema import Check, Row
from privkit.settings.config import AuditConfig
from privkit.shared.certificate import Certificate
from privkit.shared.empirical_bound import EmpiricalBound
from privkit.shared.seeds import derive
from privkit.training import Clients
from privkit.training.losses import own_loss
from privkit.wire.channel import black_box_query, holds_all, record_rounds, seen_alone, shared_lower
from privkit.wire.transcript import Transcript

_STANDS = "claim_stands"  # name of the check that the claim is not refuted
_EXPECTED_FROM = 8
"""Number of noise-free releases whose mean is a canary's expected release; more than one because of shuffles."""
_CANDIDATES = 1_024  # number of auxiliary images among which counterparts are searched, over all clients
_ALIKE = (
    "a fair coin chooses each attacked record's content, and the coins of all {} fell alike, so no guess can be told "
    "from another; attack more records, or take another seed"
)
_MEET = "in the lower segment, images of a batch affect each other"
Look = Callable[[Tensor], Tensor]
"""A function: images [N, ...], in whole rounds -> the release of each image without noise, [N, ...]."""


def ask(context: TrainedContext) -> Row:
    """Run a canary attack: for each attacked image, a coin chooses one of two contents, and the attack guesses which.

    The contents are the image and a counterpart or, for an attack on gradients, two labels of the image. The chosen one
    is sent as often as the run sends a record. The result has a lower bound on ε.
    """
    attack: CanaryAttack = context.cell.attack.spec
    seed = context.cell.seed
    must_send(context)
    if attack.on == "gradient":
        must_get_gradients(context)
    if context.certificate.relation == "add_or_remove_one":
        raise NotApplicable("the claim is about adding or removing a record, but these canaries replace one by another")
    checks = context.planted(lambda: controls(attack, seed))
    context.begin()
    draws = Generator().manual_seed(derive(seed, "canaries"))
    coins = torch.rand(len(context.seed_data.victims), generator=draws) < 0.5
    if bool(coins.all()) or not bool(coins.any()):  # the proof needs fair coins, so none is tossed again
        raise NotApplicable(_ALIKE.format(len(coins)))
    sending = (smashed if attack.on == "smashed" else gradients)(context, coins, draws)
    shape, claim = context.seed_data.splits.domain.shape, sending.claim
    seen = {name: getattr(sending, name) for name in ("views", "rows", "present", "absent")}
    observation = CanaryObservation(image_shape=shape, batch_size=context.round_size, **seen)
    scores = scores_of(attack, attack.run(observation, context.generator()))
    values, delta = scores.values.cpu().numpy(), context.config.delta if claim.delta is None else None
    family, alone = claimed_family(claim, sending.mechanism), not sending.shared
    audit = audit_one_run(values, coins.numpy(), claim, delta=delta, family=family, independent=alone)
    audit = remarked(audit, claim, sending.shared)
    refuted = (Check(name=_STANDS, passed=False, detail=claim.statement, decisive=True),) if sending.refuted else ()
    return context.row.model_copy(
        update={
            "certificate": claim if refuted else context.certificate,
            "answers": context.told(scores, coins),
            "limits": limits_of(claim, sending.mechanism),
            "empirical_bound": audit,
            "checks": (*checks, *bound_check(audit), *refuted),
        }
    )


def bound_check(audit: EmpiricalBound) -> tuple[Check, ...]:
    """Check that an attack's lower bound on ε does not exceed the claimed ε; empty if nothing is claimed.

    The check is undecided if the bound could not exceed the claim even for a perfect attack.
    """
    if audit.claimed == inf:
        return ()
    passed = None if audit.idle else not audit.refuted
    return (Check(name=_STANDS, passed=passed, detail=audit.statement, decisive=not audit.idle),)


def remarked(found: EmpiricalBound, claim: Certificate, shared: str) -> EmpiricalBound:
    """Add to the bound's statement whether canaries depend on each other, and whether the claim is about a client."""
    said = found.statement
    if shared and found.claimed < inf:
        said += f"; canaries are not independent trials ({shared}), so this is the weaker bound from one run"
    if claim.unit == "client":
        said += "; one record is exchanged, but the claim is about a whole client"
    return replace(found, statement=said)


@dataclass(frozen=True, kw_only=True)
class Sending:
    """One run with canaries: the releases, and the releases that the adversary expects with and without each canary."""

    views: list[View]  # what the adversary saw
    rows: Tensor  # int64 [R, K], number of the released record that contains canary k or its counterpart in pass r
    present: Tensor  # [K, ...] or [R, K, ...], the expected release with the canary
    absent: Tensor  # of the same shape: the expected release with the canary's counterpart
    claim: Certificate  # the certificate that such canaries test
    mechanism: SplitMechanism | None  # the claimed mechanism; None without a claim
    shared: str  # why canaries depend on each other; empty if they are independent trials
    refuted: str = ""  # why the run's certificate is wrong, whatever the attack's scores; empty if nothing refutes it


def smashed(context: TrainedContext, coins: Tensor, draws: Generator) -> Sending:
    """Send each of K images (`coins` true) or its counterpart: the candidate with the most different release."""
    edge, victims = context.model.edge, context.seed_data.victims
    size, passes, silent = context.round_size, context.release_count.epochs, noiseless(edge)
    located = tells_where(silent, victims.x[:size])
    look = seen_alone(silent, size) if located else _seen_through(black_box_query(silent), size, draws)
    present = look(victims.x)
    clients = 1 if shared_lower(edge) is not None else edge.lowers.copies
    others = context.seed_data.auxiliary.x[: max(1, _CANDIDATES // clients)]
    candidates = torch.cat([victims.domain.extremes(draws).to(others.device), others])
    counterparts = candidates[farthest(look, present, candidates, clients, size // clients)]
    absent = look(counterparts)
    images = rows_where(coins, victims.x, counterparts)
    batch, seed = context.config.training.batch_size, derive(context.cell.seed, "canaries", "sent")
    sent = record_rounds(edge, replace(victims, x=images), batch_size=batch, seed=seed, passes=passes)
    members, why = sent.members.view(passes, -1), sent.receipts[0].shared
    if not why and context.release_count.lower_model != "frozen":
        why = "the lower segment learns from the canaries"
    if not why:  # canaries are independent only if the batch changes a release by far less than the counterpart does
        together, alone = look(images).double(), rows_where(coins, present, absent).double()
        if not torch.allclose(together, alone, rtol=1e-5, atol=1e-3 * float((present - absent).abs().max())):
            why = _MEET
    if located:
        present, absent = in_their_rows(sent.views, members, present, absent)
    covered = context.certificate.covers == "release"
    refuted = why if why == _MEET and rests_on_rows(context.certificate, edge.defense) else ""
    return Sending(
        views=sent.views,
        rows=rows_of(members, len(victims), sent.views[0].mixed),
        present=present,
        absent=absent,
        claim=nothing(refuted) if refuted else context.certificate if covered else no_protection(),
        mechanism=sent.receipts[0].mechanism(context.release_count) if covered and not refuted else None,
        shared=why,
        refuted=refuted,
    )


def farthest(look: Look, present: Tensor, candidates: Tensor, clients: int, batch: int) -> Tensor:
    """For each of K canaries, find the candidate whose release by the same client differs most from the canary's;
    return its number, int64 [K].

    Args:
        present: releases of the canaries, [K, ...], ordered by round, and within a round by client.
        candidates: N images, [N, C, H, W]; every client tries all of them.
        clients: number of clients, or 1 if all have the same lower segment.
        batch: number of images per client and round.
    """
    rounds = -(-len(candidates) // batch)
    order = (torch.arange(rounds * batch, device=candidates.device) % len(candidates)).view(rounds, batch)
    asked = torch.stack([order.roll(client, 0) for client in range(clients)], 1)  # [rounds, n, B]
    rows = look(candidates[asked.flatten()]).flatten(1)
    own, theirs = (
        side.flatten(1).unflatten(0, (-1, clients, batch)).transpose(0, 1).flatten(1, 2) for side in (present, rows)
    )
    best = asked.transpose(0, 1).flatten(1).gather(1, torch.cdist(own, theirs).argmax(2))
    return best.view(clients, -1, batch).transpose(0, 1).flatten()


def tells_where(edge: Clients, images: Tensor) -> bool:
    """Whether each image's mixing weight at each position is public, with no shuffle or block that hides positions."""
    if edge.defense.level != "smashed" or not edge.defense.keeps_positions or edge.block is not None:
        return False
    return black_box_query(edge)(images, Generator(images.device).manual_seed(0)).view.weights is not None


def _seen_through(query: Query, size: int, draws: Generator) -> Look:
    """A function that computes the mean release of each image over several queries of `size` images."""

    def look(images: Tensor) -> Tensor:
        own = Generator(images.device).manual_seed(int(torch.randint(2**31, (1,), generator=draws)))
        means = []
        for part in images.split(size):
            total, count = None, torch.zeros(len(part), device=images.device)
            for _ in range(_EXPECTED_FROM):
                answer = query(part, own)
                row, seat = (answer.members >= 0).nonzero(as_tuple=True)
                member, rows = answer.members[row, seat], answer.view.smashed[row]
                total = rows.new_zeros(len(part), *rows.shape[1:]) if total is None else total
                total.index_add_(0, member, rows)
                count.index_add_(0, member, torch.ones_like(member, dtype=count.dtype))
            assert total is not None
            means.append(total / count.view(-1, *[1] * (total.ndim - 1)))
        return torch.cat(means)

    return look


def in_their_rows(views: Sequence[View], members: Tensor, present: Tensor, absent: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the mixtures that are expected with each of K canaries and with its counterpart in each of P passes: two
    tensors [P, K, ...].

    Each other canary in a mixture counts as the mean of its own and its counterpart's release. `present` and `absent`,
    [K, ...], are the releases of each canary and its counterpart alone. `members`, int64 [P, places in a pass], is the
    number of the canary at each place, −1 for none.
    """
    k, half, middle = views[0].mixed, (present - absent) / 2, (present + absent) / 2
    expected = present.new_zeros(2, len(members), *present.shape)
    at = members.view(-1, k).split([len(view.smashed) for view in views])
    for number, (view, seats) in enumerate(zip(views, at, strict=True)):
        assert view.weights is not None
        time, taken = number * len(members) // len(views), seats >= 0
        weights = view.weights * taken.unsqueeze(2)
        whole = mixed_release(middle[seats.clamp(min=0).flatten()], k, weights)
        for seat in range(k):
            on = taken[:, seat]
            own = mixed_release(half[seats[on, seat]], 1, weights[on, seat : seat + 1])
            expected[0, time, seats[on, seat]], expected[1, time, seats[on, seat]] = whole[on] + own, whole[on] - own
    return expected[0], expected[1]


def rows_of(members: Tensor, count: int, mixed: int) -> Tensor:
    """The number of the released record that contains each of K images, in each of R passes over them, int64 [R, K]."""
    passes, seats = members.shape
    at = torch.arange(passes * seats, device=members.device).view(passes, seats) // mixed
    spare = torch.where(members >= 0, members, count)  # empty places write to an extra column, which is dropped
    return members.new_zeros(passes, count + 1).scatter(1, spare, at)[:, :count].cpu()


def noiseless(edge: Clients) -> Clients:
    """A copy of the clients with negligible noise, to compute expected releases."""
    silent = deepcopy(edge).eval()
    silent.defense = edge.defense.noiseless()
    return silent


def gradients(context: TrainedContext, coins: Tensor, draws: Generator) -> Sending:
    """Send each of K images with its own label (`coins` true, bool [K]) or with another label, and record the returned
    gradients.

    The model is not trained in these rounds, so the result is a lower bound on what a training of the same number of
    rounds reveals. Raises `NotApplicable` if the run's labels, server or parts do not allow this.
    """
    edge, victims = context.model.edge, context.seed_data.victims
    must_send_labels(context)
    if own_loss(context.model.upper) is not None or edge.protocol.servers > 1:
        raise NotApplicable("canaries on=gradient need one server, with cross-entropy as its loss")
    if not holds_all(edge):
        raise NotApplicable("canaries on=gradient asks the server, who holds all parts; leave out parts")
    if edge.defense.group > 1:
        raise NotApplicable("canaries on=gradient asks for one label per row, and mixed rows have several")
    step = torch.randint(1, max(2, edge.classes), (len(victims),), generator=draws).to(victims.y.device)
    pair = torch.stack([victims.y, (victims.y + step) % edge.classes])
    times = context.release_count.epochs
    views, sides = _returned(context, torch.where(coins.to(pair.device), pair[0], pair[1]), pair, times, draws)
    rows = torch.arange(times * len(victims)).view(times, -1)
    covered = context.certificate.covers == "labels"
    return Sending(
        views=views,
        rows=rows,
        present=sides[:, 0],
        absent=sides[:, 1],
        claim=context.certificate if covered else no_protection(),
        mechanism=context.recording.receipts[0].mechanism(context.release_count) if covered else None,
        shared="the lower segment learns, and with it what comes back for every row",
    )


def _returned(
    context: TrainedContext, labels: Tensor, pair: Tensor, times: int, draws: Generator
) -> tuple[list[View], Tensor]:
    """Send K images in `times` passes without training, and record the gradients that come back.

    `pair`, int64 [2, K], holds two candidate labels for each image; the images are sent with `labels` [K]. Returns the
    adversary's view of each pass, and the gradients, of F numbers, that are expected for either candidate, [times, 2,
    K, F].
    """
    edge, victims = deepcopy(context.model.edge).eval(), context.seed_data.victims
    upper, device = deepcopy(context.model.upper).eval(), victims.x.device
    seeds = torch.randint(2**31, (2,), generator=draws).tolist()
    own, expected = (Generator(device).manual_seed(seed) for seed in seeds)
    rounds = torch.arange(len(victims), device=device).view(-1, edge.lowers.copies, context.config.training.batch_size)
    silent, averaged = edge.defense.noiseless(), edge.protocol.gradient == "average"
    views, sides = [], []
    for time in range(times):
        transcript, either = Transcript(), []
        for number, rows in enumerate(rounds):
            # The server computes gradients at the release that it received, so expected gradients are computed there,
            # too.
            recorded = transcript(edge, upper, victims.x[rows], labels[rows], own, number=number)
            either.append(_either_side(upper, recorded.sent.release.smashed, pair[:, rows], silent, averaged, expected))
        sides.append(torch.cat(either, 1).cpu())
        seen = transcript.views
        views.append(
            View(
                round=time,
                smashed=torch.cat([view.smashed for view in seen]),
                cut_gradient=torch.cat([view.cut_gradient for view in seen if view.cut_gradient is not None]),
            )
        )
    return views, torch.stack(sides)


def _either_side(
    upper: nn.Module, released: Tensor, pair: Tensor, defense: Defense, averaged: bool, draws: Generator
) -> Tensor:
    """Compute the gradients expected under the first and the second candidate label of each record, [2, M·B, F].

    The labels of all other records are assumed unknown; `released` is [M, B, ...] from M clients with B records each,
    and `pair` is int64 [2, M, B]. If `averaged`, all clients get the mean of all clients' gradients.
    """
    m, b = released.shape[:2]
    gradients = label_gradients(upper, released.detach().flatten(0, 1).float(), pair.flatten(1)) / b
    back = torch.stack([defense.on_gradient(side.view(released.shape), draws).flatten(2) for side in gradients])
    if averaged:
        middle, half = back.mean((0, 1)), (back[0] - back[1]) / (2 * m)
        back = torch.stack([middle + half, middle - half])
    return back.flatten(1, 2)


class _Distinguish(AuditGoal):
    ask = staticmethod(ask)

    def cost(self, attack: CanaryAttack, timed: Timed, config: AuditConfig, sizes: Mapping[str, int]) -> Cost:
        """Estimate the cost: each round of canaries is sent without training, in a third of a training step's time."""
        return Cost(steps=config.budget.epochs * sizes["victims"] / sizes["a_round"] / 3)


GOAL = _Distinguish()
