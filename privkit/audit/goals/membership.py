"""Was this image trained on? Asked of released private images and of test images, through the model's answers."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Generator, Tensor

from privkit.attacks.base import NotApplicable
from privkit.attacks.membership.member_inference import MembershipKnowledge, Predict
from privkit.audit.defended import DefendedModel, another
from privkit.audit.goals.context import AttackContext, must_send, planted
from privkit.domains.partition import rounds_an_epoch
from privkit.reports.schema import Check, Row
from privkit.seeds import derive
from privkit.training.loop import round_order
from privkit.training.losses import class_scores

CONTROL_CANDIDATES, CONTROL_CLASSES = 400, 4
EXACT = "donot_use_mm_for_euclid_dist"  # a product of matrices rounds the distance of an image to itself above 0


def ask(context: AttackContext) -> Row:
    """Ask for the membership of as many images that training released as there are test images beside them.

    Both kinds are asked about together, in an order of their own: a defense that mixes a batch mixes members with
    others.

    Raises:
        NotApplicable: if nothing is sent, or a round takes more images than there are of either kind.
    """
    splits, size = context.seed_data.splits, context.round_size
    must_send(context)
    members = splits.private[released(context)]
    each = min(context.config.budget.victims, len(members), len(splits.test)) // size * size
    if each == 0:
        raise NotApplicable(f"a round takes {size} images, more than training released or than there are test images")
    gates = context.controls(lambda: controls(context.attack, context.cell.seed))
    context.begin()
    order = torch.randperm(2 * each, generator=Generator().manual_seed(derive(context.cell.seed, "members", "order")))
    asked, truth = order.to(members.x.device), order < each
    candidates = replace(
        members,
        x=torch.cat([members.x[:each], splits.test.x[:each]])[asked],
        y=torch.cat([members.y[:each], splits.test.y[:each]])[asked],
        ids=torch.cat([members.ids[:each], splits.test.ids[:each]])[asked],
    )
    knowledge = MembershipKnowledge(
        image_shape=splits.domain.shape,
        batch_size=size,
        candidates=candidates.x,
        candidate_labels=candidates.y,
        predict=_predict(context, context.model),
        fit=lambda images, labels, draws: _fit(context, images, labels, draws),
    )
    checkpoint = context.checkpoint()
    found = context.attack.run([], knowledge, context.generator(), checkpoint)
    checkpoint.remove()
    return context.row.model_copy(update={"answers": context.told(found, truth), "gates": gates})


def released(context: AttackContext) -> Tensor:
    """Rows of the private images that training released at least once, ascending, int64 on their device.

    Its epochs are drawn over again. Others take no part: what an epoch's last round leaves over, images that nobody
    was dealt, and those to which a client that takes fewer rounds than it could fill did not come.
    """
    seed_data, config, protocol = context.seed_data, context.config, context.model.edge.protocol
    private, batch = seed_data.splits.private, config.training.batch_size
    rounds = rounds_an_epoch(len(private), protocol.clients, batch)
    seen = torch.zeros(len(private), dtype=torch.bool, device=private.x.device)
    for epoch in range(config.budget.epochs):
        draws = Generator(private.x.device).manual_seed(derive(context.cell.seed, "train", epoch))
        seen[round_order(private, seed_data.shares, protocol, batch, rounds, draws).flatten()] = True
    return seen.nonzero().flatten()


def controls(attack, seed: int) -> tuple[Check, ...]:  # type: ignore[no-untyped-def]
    """A model that knows its own images by heart; and one that answers at random."""
    draws = Generator().manual_seed(seed)
    images = torch.rand(CONTROL_CANDIDATES, 1, 4, 4, generator=draws)
    labels = torch.randint(CONTROL_CLASSES, (CONTROL_CANDIDATES,), generator=draws)
    positive = torch.rand(CONTROL_CANDIDATES, generator=draws) < 0.5

    def by_heart(own: Tensor, truth: Tensor, draws: Generator) -> Predict:
        def predict(asked: Tensor) -> Tensor:
            logits = torch.randn(len(asked), CONTROL_CLASSES, generator=draws)
            distance, nearest = torch.cdist(asked.flatten(1), own.flatten(1), compute_mode=EXACT).min(1)
            known = 8.0 * torch.nn.functional.one_hot(truth[nearest], CONTROL_CLASSES)
            return logits + known * (distance < 1e-4).unsqueeze(1)

        return predict

    def at_random(own: Tensor, truth: Tensor, draws: Generator) -> Predict:
        return lambda asked: torch.randn(len(asked), CONTROL_CLASSES, generator=draws)

    found = []
    for fit in (by_heart, at_random):
        knowledge = MembershipKnowledge(
            image_shape=(1, 4, 4),
            batch_size=CONTROL_CANDIDATES,
            candidates=images,
            candidate_labels=labels,
            predict=fit(images[positive], labels[positive], draws),
            fit=fit,
        )
        found.append(attack.run([], knowledge, Generator().manual_seed(seed)))
    return planted(found[0], positive, found[1], positive)


def _predict(context: AttackContext, model: DefendedModel) -> Predict:
    """The deployed model: images through one of the clients' segments each, in turn, as test images go."""
    edge, size = model.edge, context.round_size

    @torch.no_grad()
    def predict(images: Tensor) -> Tensor:
        padding = -len(images) % size
        asked = torch.cat([images, images[:1].expand(padding, *images.shape[1:])]) if padding else images
        draws = Generator(images.device).manual_seed(derive(context.cell.seed, "members"))
        logits = []
        for part in asked.view(-1, edge.lowers.copies, size // edge.lowers.copies, *images.shape[1:]):
            labels = torch.zeros(part.shape[:2], dtype=torch.int64, device=images.device)
            logits.append(class_scores(model.upper(edge.infer(part, labels, draws).flatten(0, 1))).float())
        return torch.cat(logits)[: len(images)]

    return predict


def _fit(context: AttackContext, images: Tensor, labels: Tensor, draws: Generator) -> Predict:
    """A model of the same kind on these images and, up to the real one's number, on the adversary's others."""
    auxiliary, many = context.seed_data.auxiliary, len(context.seed_data.splits.private)
    others = len(auxiliary) if context.config.auxiliary == "disjoint" else 0  # else of other classes, or private
    fill = torch.randperm(others, generator=draws)[: max(0, many - len(images))].to(images.device)
    private = replace(
        auxiliary,
        x=torch.cat([images, auxiliary.x[fill]]),
        y=torch.cat([labels, auxiliary.y[fill]]),
        ids=torch.arange(len(images) + len(fill), device=images.device),
    )
    seed = int(torch.randint(2**31, (1,), generator=draws))
    config = context.config
    shares = config.partition.spec.assign(private.y, config.protocol.spec.clients, derive(seed, "partition"))
    return _predict(context, another(config, context.cell, context.seed_data, private, shares, seed))
