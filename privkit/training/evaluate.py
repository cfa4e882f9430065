"""Evaluates a defended model's task on images that neither side was trained on."""

from __future__ import annotations

import torch
from torch import Generator, nn

from privkit.defenses.denoising import switch
from privkit.domains.base import Batch
from privkit.errors import UsageError
from privkit.metrics.classification import TaskScores, task_scores, token_scores
from privkit.shared.seeds import derive
from privkit.torch_utils.seeded import seeded
from privkit.training.clients import Clients
from privkit.training.losses import class_scores, next_tokens
from privkit.training.no_labels import of_others
from privkit.training.round import answered


@torch.no_grad()
def evaluate(
    clients: Clients,
    upper: nn.Module,
    images: Batch,
    *,
    batch_size: int,
    seed: int,
    stage: tuple[str | int, ...] = ("test",),
    noise_free: bool = False,
) -> TaskScores:
    """Compute accuracy, MCC and AUC of the defended model on test images; if it predicts texts, only accuracy.

    Images pass through the n clients' lower segments in turn, so the result is a mean over clients. The defense gets
    labels of other images; with the true labels, a defense that leaks them would look accurate.

    Args:
        clients: the clients' segments and the defense, without its steps that mix or that act only in training.
        upper: the server's segment; its first output holds the scores of the classes.
        images: test images, on the clients' device; images that do not fill a last round are left out.
        batch_size: images per client and round.
        seed: the seed of the defense's random numbers.
        stage: name of the evaluation, which determines its random numbers together with `seed`.
        noise_free: whether to leave out the defense's noise, and the masks and scaling that remove noise.

    Raises:
        UsageError: if there are fewer images than one round needs.
    """
    copies = clients.lowers.copies
    count = len(images) // (copies * batch_size) * copies * batch_size
    if count == 0:
        raise UsageError(
            f"batch_size={batch_size} of {copies} clients is more than the {len(images)} {stage[0]} images; lower it"
        )
    clients.eval()
    upper.eval()
    switch(upper, off=noise_free)
    device, scores = images.x.device, []
    labels = of_others(images.y[:count], derive(seed, *stage, "labels"))
    draws = Generator(device).manual_seed(derive(seed, *stage))
    with seeded(device, derive(seed, *stage, "module")):
        for part in torch.arange(count, device=device).view(-1, copies, batch_size):
            with clients.mixed_precision(device):
                smashed = clients.infer(images.x[part], labels[part], draws, noise_free=noise_free)
                outputs = class_scores(answered(upper, smashed, clients.protocol))
            scores.append(outputs if clients.predicts == "labels" else outputs.argmax(-1))
    switch(upper, off=False)
    if clients.predicts == "texts":
        return token_scores(torch.cat(scores).cpu().numpy(), next_tokens(images.x[:count]).cpu().numpy())
    return task_scores(torch.cat(scores).double().cpu().numpy(), images.y[:count].cpu().numpy())
