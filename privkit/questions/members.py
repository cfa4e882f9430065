"""Was this image trained on? Asked of private images and of test images, through the trained model's answers."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from privkit.attacks.base import NotApplicable
from privkit.attacks.member_inference import MembershipKnowledge, Predict
from privkit.data.base import Batch
from privkit.defended import DefendedModel, another
from privkit.questions.scene import Scene, planted, told_apart
from privkit.reports.schema import Gate, Row
from privkit.seeds import derive

CONTROL_CANDIDATES, CONTROL_CLASSES = 400, 4
EXACT = "donot_use_mm_for_euclid_dist"  # a product of matrices rounds the distance of an image to itself above 0


def ask(scene: Scene) -> Row:
    """Ask for the membership of as many private images as there are test images to compare them with.

    Raises:
        NotApplicable: if a round takes more images than there are of either kind.
    """
    splits, edge = scene.setting.splits, scene.model.edge
    if edge.protocol.upper == "own":
        raise NotApplicable("standalone clients send nothing, so there is nothing to attack")
    size = scene.round_size
    each = min(scene.config.budget.victims, len(splits.private), len(splits.test)) // size * size
    if each == 0:
        raise NotApplicable(f"a round takes {size} images, more than there are private or test images")
    gates = scene.controls(lambda: controls(scene.attack, scene.cell.seed))
    scene.begin()
    candidates = Batch(
        x=torch.cat([splits.private.x[:each], splits.test.x[:each]]),
        y=torch.cat([splits.private.y[:each], splits.test.y[:each]]),
        ids=torch.cat([splits.private.ids[:each], splits.test.ids[:each]]),
    )
    knowledge = MembershipKnowledge(
        image_shape=splits.image_shape,
        batch_size=size,
        candidates=candidates.x,
        candidate_labels=candidates.y,
        predict=_predict(scene, scene.model),
        fit=lambda images, labels, draws: _fit(scene, images, labels, draws),
    )
    checkpoint = scene.checkpoint()
    found = scene.attack.run([], knowledge, scene.generator(), checkpoint)
    checkpoint.remove()
    positive = torch.arange(2 * each) < each
    return scene.row.model_copy(update={"answers": told_apart(found, positive), "gates": gates})


def controls(attack, seed: int) -> tuple[Gate, ...]:  # type: ignore[no-untyped-def]
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


def _predict(scene: Scene, model: DefendedModel) -> Predict:
    """The deployed model: images through one of the clients' segments each, in turn, as test images go."""
    edge, size = model.edge, scene.round_size

    @torch.no_grad()
    def predict(images: Tensor) -> Tensor:
        padding = -len(images) % size
        asked = torch.cat([images, images[:1].expand(padding, -1, -1, -1)]) if padding else images
        draws = Generator(images.device).manual_seed(derive(scene.cell.seed, "members"))
        logits = []
        for part in asked.view(-1, edge.lowers.copies, size // edge.lowers.copies, *images.shape[1:]):
            labels = torch.zeros(part.shape[:2], dtype=torch.int64, device=images.device)
            logits.append(model.upper(edge.infer(part, labels, draws).flatten(0, 1)).float())
        return torch.cat(logits)[: len(images)]

    return predict


def _fit(scene: Scene, images: Tensor, labels: Tensor, draws: Generator) -> Predict:
    """A model of the same kind on these images and, up to the real one's number, on the adversary's others."""
    auxiliary, many = scene.setting.auxiliary, len(scene.setting.splits.private)
    others = len(auxiliary) if scene.config.auxiliary == "disjoint" else 0  # else of other classes, or private
    fill = torch.randperm(others, generator=draws)[: max(0, many - len(images))].to(images.device)
    private = Batch(
        x=torch.cat([images, auxiliary.x[fill]]),
        y=torch.cat([labels, auxiliary.y[fill]]),
        ids=torch.arange(len(images) + len(fill), device=images.device),
    )
    seed = int(torch.randint(2**31, (1,), generator=draws))
    config = scene.config
    shares = config.partition.spec.assign(private.y, config.protocol.spec.clients, derive(seed, "partition"))
    return _predict(scene, another(config, scene.cell, scene.setting, private, shares, seed))
