"""The goal "membership": guesses which images were trained on. Members are private images, non-members test images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Generator, Tensor

from privkit.attacks.base import NotApplicable, Session
from privkit.attacks.escalate import escalated
from privkit.attacks.goals.membership import Fit, MembershipAttack, MembershipObservation, Predict, controls
from privkit.attacks.outputs import scores_of
from privkit.audit.defended import DefendedModel, another
from privkit.audit.goals.context import better_than_chance, must_have_one_label
from privkit.audit.goals.goal import AuditGoal, Cost, Timed
from privkit.audit.goals.trained import TrainedContext, must_send, must_send_labels
from privkit.reports.schema import Row
from privkit.settings.config import AuditConfig
from privkit.shared.interval import Interval
from privkit.shared.seeds import derive
from privkit.training.losses import class_scores
from privkit.training.no_labels import drawn_labels
from privkit.training.round import answered

_OTHER_KIND = (
    "non-members are from the test set that the dataset brings; if its records differ in kind from the training "
    "records, the AUC shows this difference as well as membership"
)
_CHOSEN_ON = "the epoch was chosen as the best on the test images, which are the non-members here"


def ask(context: TrainedContext) -> Row:
    """Run a membership inference attack on private images that training released, and equally many test images.

    Members and non-members go through the model in one random order, so a defense that mixes a batch mixes both kinds.
    """
    attack: MembershipAttack = context.cell.attack.spec
    splits, size = context.seed_data.splits, context.round_size
    must_send(context)
    must_send_labels(context)
    must_have_one_label(context)
    members = splits.private[released(context)]
    each = min(context.config.budget.victims, len(members), len(splits.test)) // size * size
    if each == 0:
        raise NotApplicable(f"a round takes {size} images, more than training released or than there are test images")
    checks = context.planted(lambda: controls(attack, context.cell.seed))
    context.begin()
    order = torch.randperm(2 * each, generator=Generator().manual_seed(derive(context.cell.seed, "members", "order")))
    asked, truth = order.to(members.x.device), order < each
    candidates = members[:each].joined(splits.test[:each])[asked]
    observation = MembershipObservation(
        image_shape=splits.domain.shape,
        batch_size=size,
        candidates=candidates.x,
        candidate_labels=candidates.y,
        predict=_predict(context.model, size, context.cell.seed),
        fit=_fit(context) if "fit" in attack.uses else None,
    )
    checkpoint = context.checkpoint()

    def mounted(session: Session) -> dict[str, Interval]:
        return context.told(scores_of(attack, attack.run(observation, context.generator(), session)), truth)

    doublings = context.config.escalate if attack.mounting.shadow_models else 0
    answers, went = escalated(mounted, better_than_chance, checkpoint, most=doublings, unit="shadow models")
    checkpoint.remove()
    notes = {
        went.sentence: bool(doublings),
        _OTHER_KIND: splits.official_test,
        _CHOSEN_ON: context.config.training.keep == "best_test",
    }
    told = tuple(note for note, applies in notes.items() if note and applies)
    return context.row.model_copy(update={"answers": answers, "checks": checks, "notes": told})


def released(context: TrainedContext) -> Tensor:
    """Indices of the private images that training released at least once, ascending, int64 on the images' device.

    An image is never released if it is left over at the end of every epoch, or if its client never reaches it. If the
    model of the best epoch is kept, only the epochs up to this one count.
    """
    private, config, best = context.seed_data.splits.private, context.config, context.model.known["best_epoch"]
    seen = torch.zeros(len(private), dtype=torch.bool, device=private.x.device)
    for epoch in range(config.budget.epochs if config.training.keep == "last" or best is None else best):
        seen[context.order(epoch).flatten()] = True
    return seen.nonzero().flatten()


def _predict(model: DefendedModel, size: int, seed: int) -> Predict:
    """Make a function: images [N, C, H, W] -> the deployed model's class scores. The clients' segments take turns."""
    edge = model.edge

    @torch.no_grad()
    def predict(images: Tensor) -> Tensor:
        padding = -len(images) % size
        asked = torch.cat([images, images[:1].expand(padding, *images.shape[1:])]) if padding else images
        draws = Generator(images.device).manual_seed(derive(seed, "members"))
        logits = []
        for part in asked.view(-1, edge.lowers.copies, size // edge.lowers.copies, *images.shape[1:]):
            labels = drawn_labels(part.shape[:2], edge.classes, draws)
            outputs = answered(model.upper, edge.infer(part, labels, draws), edge.protocol)
            logits.append(class_scores(outputs).float())
        return torch.cat(logits)[: len(images)]

    return predict


def _fit(context: TrainedContext) -> Fit:
    """Make a function that trains a shadow model on given images and returns its prediction function.

    If the adversary's own images are disjoint from the private ones, some of them are added, up to the real model's
    number of images. The function itself stores no attacked image.
    """
    config, cell, real = context.config, context.cell, context.seed_data
    auxiliary, many, size = real.auxiliary, len(real.splits.private), context.round_size
    # other auxiliary images have other classes or are private
    others = len(auxiliary) if config.auxiliary == "disjoint" else 0
    none = real.victims[torch.arange(0)]
    splits = replace(real.splits, private=none, auxiliary=none, test=none, validation=None)
    own = replace(real, victims=none, splits=splits)

    def fit(images: Tensor, labels: Tensor, draws: Generator) -> Predict:
        fill = torch.randperm(others, generator=draws)[: max(0, many - len(images))].to(images.device)
        private = replace(
            auxiliary,
            x=torch.cat([images, auxiliary.x[fill]]),
            y=torch.cat([labels, auxiliary.y[fill]]),
            ids=torch.arange(len(images) + len(fill), device=images.device),
        )
        seed = int(torch.randint(2**31, (1,), generator=draws))
        shares = config.partition.spec.assign(private.y.cpu(), config.protocol.spec.clients, derive(seed, "partition"))
        # another seed than the real model's, whose noise stays secret
        return _predict(another(config, cell, own, private, shares, seed), size, seed)

    return fit


class _Membership(AuditGoal):
    escalates: ClassVar[bool] = True

    ask = staticmethod(ask)

    def cost(self, attack: MembershipAttack, timed: Timed, config: AuditConfig, sizes: Mapping[str, int]) -> Cost:
        """The cost of training the shadow models or, without shadow models, of one pass over all candidates."""
        return Cost(steps=sizes["rounds"] * attack.mounting.shadow_models or 2 * sizes["victims"] / sizes["a_round"])


GOAL = _Membership()
