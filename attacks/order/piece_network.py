"""The jigsaw's networks (for a token's place, neighbors and image), and their training on the adversary's tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from math import isqrt, log
from typing import Any

import torch
from torch import Generator, Tensor, nn

from privkit.attacks.assign import by_capacity, sinkhorn, take
from privkit.attacks.fit import Learner
from privkit.attacks.inversion.decoders.mae import blocks
from privkit.torch_utils.one_cycle import one_cycle

SHARPNESS = 1.3
"""Log-odds per unit of log ratio; a network learned 1.0 to 1.3 on CIFAR-10's 8-pixel patches."""
_EMBEDDING = 48
_BLOCKS = 3
_JOINT_STEPS = 5  # steps of Sinkhorn's iteration
# iterations of `MessageNetwork`, each with one step of Sinkhorn's iteration; more gained nothing in measurements
_ROUNDS = 3
_IMAGES_A_STEP = 32
_IMAGES_A_JOINT_STEP = 16  # more and smaller steps learn more in the same time
_IMAGES_AN_EPOCH = 1_000  # images drawn anew for each epoch; more cost time and gained nothing in measurements
_TOKENS_OF_MESSAGES = 800  # largest number of tokens in a step of several messages
_MESSAGES_AN_IMAGE = 2  # messages per image and epoch: each has a newly drawn shuffle
_MESSAGE_STEPS = 100  # most message steps of an epoch
_MEMBER_STEPS = 20  # steps of Sinkhorn's iteration that give each image its number of tokens
_STARTS = tuple(2.0**-power for power in range(12))  # factors of the linear start, of which the best is taken
_START_MESSAGES = 4  # messages on which this factor is chosen
_CURVED = 0.1  # factor on the random weights of the nonlinear part, beside a linear start
_WITHIN = 1e-4  # ridge on the covariance within images, as a share of its mean variance
_TINY = 1e-12  # least mean variance and least size of weights, for tokens that are all equal
_LEARNING_RATE = 2e-3

ShownRows = Callable[[Tensor], Tensor]
"""Function from indices of own images to their features or edge ratios, so that not all must be in memory at once."""


class PieceNetwork(nn.Module):
    """A network for the puzzle of shuffled tokens: it scores tokens for places, and pairs of tokens as neighbors.

    Places are scored for each token separately, or jointly for all tokens of an image (`JointPlaces`). Separate scores
    also suit rows that hold tokens of other images.
    """

    def __init__(self, features: int, tokens: int, width: int, joint: bool = False) -> None:
        super().__init__()
        self.places = (
            JointPlaces(features, tokens, width)
            if joint
            else nn.Sequential(nn.Linear(features, width), nn.GELU(), nn.Linear(width, tokens))
        )
        self.linear = nn.Linear(features, 4 * _EMBEDDING)
        self.curved = nn.Sequential(nn.Linear(features, 2 * width), nn.GELU(), nn.Linear(2 * width, 4 * _EMBEDDING))
        self.mix = nn.Parameter(torch.tensor([1.0, SHARPNESS]))

    def forward(self, pieces: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        """Score pieces [M, T, F] for places, logits [M, T, P], and pairs of pieces as neighbors, [M, 2, T, T]. `edges`
        are their `edge_ratios`.
        """
        sides = (self.linear(pieces) + self.curved(pieces)).unflatten(-1, (4, _EMBEDDING))
        first, second = sides[:, :, 0::2].transpose(1, 2), sides[:, :, 1::2].transpose(1, 2)
        squares = first.square().sum(-1).unsqueeze(3) + second.square().sum(-1).unsqueeze(2)
        distance = (squares - 2 * first @ second.transpose(2, 3)) / _EMBEDDING**0.5
        return self.places(pieces), self.mix[1] * edges - self.mix[0] * distance


class Together(nn.Module):
    """Separately trained networks as one network: their mean log-probabilities of places, and mean scores of pairs."""

    def __init__(self, networks: Sequence[PieceNetwork]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, pieces: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        places, pairs = zip(*(network(pieces, edges) for network in self.networks), strict=True)
        return torch.stack([one.log_softmax(2) for one in places]).mean(0), torch.stack(pairs).mean(0)


class JointPlaces(nn.Module):
    """Log-probabilities of tokens' places, given all tokens of an image: a transformer, then Sinkhorn's iteration.

    One token alone fits many places. The other tokens exclude most of them: two tokens cannot share a place, and a
    stroke that begins in one token must continue in another. The transformer has no positions; Sinkhorn's iteration
    turns its scores into a soft permutation.
    """

    def __init__(self, features: int, tokens: int, width: int) -> None:
        super().__init__()
        self.alone, self.enter = nn.Linear(features, tokens), nn.Linear(features, width)
        self.blocks = blocks(width, _BLOCKS, 4)
        self.leave = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, tokens))

    def forward(self, pieces: Tensor) -> Tensor:
        """Log-probabilities [M, T, P] for pieces [M, T, F]: a soft permutation; each place's column sums to one."""
        return sinkhorn(self.alone(pieces) + self.leave(self.blocks(self.enter(pieces))), _JOINT_STEPS)


def own_prior(batch: int, keep: float) -> Tensor:
    """Log-probabilities [B, B] under a shuffle; entry (b, i): a token released in row b belongs to image i."""
    stranger = (1 - keep) / batch
    return torch.where(torch.eye(batch, dtype=torch.bool), log(keep + stranger + 1e-6), log(stranger + 1e-6))


class MessageNetwork(nn.Module):
    """Find the image of each token of a message (one batch of images), for all tokens at once, in several iterations.

    The embeddings of two tokens give their attraction or repulsion. In each iteration, a token's score for an image is
    the prior of its released row plus the attractions of all other tokens, weighted by their probabilities for this
    image; then a step of Sinkhorn's method gives each image about the right number of tokens. So a token whose image
    becomes clear helps similar tokens, and the message is sorted as a whole. A message may have any number of images.
    `linear_start` gives the embedding in closed form, from which the training goes on.

    Source: mean-field inference in a learned random field, unrolled as layers (Zheng et al. 2015, §4); Sinkhorn's
    iteration replaces its softmax, since an image has a known number of tokens.
    """

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, width)
        self.curved = nn.Sequential(nn.Linear(features, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.signs = nn.Parameter(torch.ones(width))  # similar tokens may also repel each other
        self.trust = nn.Parameter(torch.ones(_ROUNDS))

    def forward(self, pieces: Tensor, prior: Tensor) -> Tensor:
        """Log-probabilities that each token [..., B, T, F] belongs to each of the B images, [R, ..., B·T, B].

        There is one result after each of the R iterations. A token's probabilities sum to 1, an image's to about T.
        `prior` [B, B] holds log-probabilities that a token in a row belongs to an image.
        """
        t, tokens = pieces.shape[-2], pieces.flatten(-3, -2)
        embedded = self.linear(tokens) + self.curved(tokens)
        signed = self.signs * embedded / embedded.shape[-1] ** 0.5
        itself = (signed * embedded).sum(-1, keepdim=True)
        start = prior.repeat_interleave(t, 0)
        chances, rounds = start.softmax(-1), []
        for trust in self.trust:
            others = signed @ (embedded.mT @ chances) - itself * chances  # no token attracts itself
            scores = trust * others + start
            rounds.append(sinkhorn(scores.mT, 1, t).mT)
            chances = rounds[-1].exp()
        return torch.stack(rounds)


@torch.no_grad()
def linear_start(
    network: MessageNetwork, pieces: ShownRows, count: int, shape: tuple[int, int], keep: float, draws: Generator
) -> None:
    """Set the embedding such that attractions are log-likelihood ratios of a linear Gaussian model.

    In the model, a token is the sum of a part that all tokens of its image share, and a part of its own. In coordinates
    in which the tokens' own parts have covariance 1 and the shared parts have variances φ, each of the T - 1 other
    tokens y of an image attracts a token x by Σ φ/(1 + Tφ) x y. Real tokens depend on each other more than the model
    says, so all attractions are multiplied by the factor that is best on shuffled messages of the adversary's images.
    The arguments are those of `shuffled_losses`.

    Source: probabilistic linear discriminant analysis (Ioffe 2006); the attraction is the cross term of its predictive
    density (derived).
    """
    n, t, width = min(count, _IMAGES_AN_EPOCH), shape[1], len(network.signs)
    squares, means = torch.zeros(()), []
    for rows in torch.arange(n).split(_IMAGES_A_STEP):
        shown = pieces(rows)
        tokens = shown.flatten(0, 1)
        squares = squares.to(tokens.device) + tokens.T @ tokens
        means.append(shown.mean(1))
    image = torch.cat(means).cpu().double()
    within = (squares.cpu().double() - t * image.T @ image) / (n * (t - 1))
    within.diagonal().add_(_WITHIN * within.diagonal().mean().clamp_min(_TINY))
    between = image.T.cov() - within / t
    whiten = partial(torch.linalg.solve_triangular, torch.linalg.cholesky(within), upper=False)
    variances, axes = torch.linalg.eigh(whiten(whiten(between).T))
    variances, axes = variances[-width:].clamp_min(0), axes[:, -width:]
    weight = whiten(axes.T, left=False) * (variances / (1 + t * variances)).sqrt().unsqueeze(1)
    unit = float(weight.square().mean().sqrt().clamp_min(_TINY))  # Adam's steps are small beside weights near 1
    linear, strength = network.linear, unit**2 * width**0.5
    linear.weight.zero_()[: len(weight)] = weight.to(linear.weight) / unit
    linear.bias.zero_()[: len(weight)] = -(weight @ image.mean(0)).to(linear.bias) / unit
    for parameter in network.curved[-1].parameters():
        parameter.mul_(_CURVED)

    messages = list(islice(shuffled_messages(pieces, count, shape, keep, draws), _START_MESSAGES))
    prior, losses = own_prior(shape[0], keep), []
    for factor in _STARTS:
        network.signs.fill_(factor * strength)
        losses.append(sum(float(message_loss(network(x, prior.to(x.device)), images)) for x, images in messages))
    network.signs.fill_(strength * min(zip(losses, _STARTS, strict=True))[1])


@torch.no_grad()
def assign_members(network: MessageNetwork, pieces: Tensor, keep: float) -> tuple[Tensor, Tensor]:
    """Assign the tokens of a message to its images, from features [B, T, F]: each image's T tokens, int64 [B, T].

    The shuffle must keep at least the share `keep` of image b's tokens in row b. Also returns log-probabilities
    [B·T, B] of each token's image; for each image, the probabilities of all tokens sum to about T.
    """
    b, t, _ = pieces.shape
    logits = sinkhorn(network(pieces, own_prior(b, keep).to(pieces.device))[-1].T, _MEMBER_STEPS, t).T
    return by_capacity(logits, t), logits


class PieceTraining(Learner):
    """AdamW with one learning-rate cycle, and the mean loss as objective; satisfies `privkit.attacks.fit.Training`."""

    def __init__(
        self,
        network: nn.Module,  # the network, trained in place
        # gives an epoch's losses, one per step, each computed when the step before is done
        losses: Callable[[], Iterator[Tensor]],
        steps: int,  # steps per epoch
        epochs: int,  # epochs of the whole training, which set the schedule
        draws: Generator,  # generator for `losses`; its state is part of the training's state
        *,
        learning_rate: float = _LEARNING_RATE,  # the peak of the cycle
        weight_decay: float = 0.05,  # as in AdamW
    ) -> None:
        optimizer = torch.optim.AdamW(network.parameters(), lr=learning_rate, weight_decay=weight_decay)
        cycle = partial(one_cycle, optimizer, learning_rate, momentum=True)
        super().__init__(network, optimizer, cycle, epochs * steps)
        self._losses, self._steps, self._draws = losses, steps, draws

    def epoch(self, number: int) -> float:
        total = torch.zeros(())
        for loss in self._losses():
            self.step(loss)
            total = total + loss.detach()
        return float(total) / self._steps

    def stateful(self) -> dict[str, Any]:
        return {**super().stateful(), "draws": self._draws}


def piece_losses(
    network: PieceNetwork,
    pieces: ShownRows,
    edges: ShownRows,
    count: int,
    draws: Generator,
    twins: Callable[[Tensor], Tensor] | None = None,
) -> Iterator[Tensor]:
    """Yield the losses (`piece_loss`) of one epoch on `count` images of the adversary, one for each step.

    `pieces` and `edges` map indices of images to features [n, T, F] and edge ratios [n, 2, T, T]; `twins` maps features
    to the targets of `piece_loss`.
    """
    for rows in torch.randperm(count, generator=draws)[:_IMAGES_AN_EPOCH].split(_images_of_step(twins is not None)):
        shown = pieces(rows)
        places, pairs = network(shown, edges(rows))
        yield piece_loss(places, pairs, None if twins is None else twins(shown))


def piece_steps(count: int, joint: bool) -> int:
    """Number of steps in an epoch of `piece_losses` on `count` images. With `joint`, the network predicts the places of
    all tokens of an image at once, instead of each token's place separately."""
    return -(-min(count, _IMAGES_AN_EPOCH) // _images_of_step(joint))


def _images_of_step(joint: bool) -> int:
    return _IMAGES_A_JOINT_STEP if joint else _IMAGES_A_STEP


def piece_loss(places: Tensor, pairs: Tensor, targets: Tensor | None = None) -> Tensor:
    """The loss of `PieceNetwork`: cross-entropy of each token's place [n, T, T], and of its neighbors [n, 2, T, T].

    Tokens are in order. `targets` are probabilities of places; None for the token's own place.
    """
    n, t, _ = places.shape
    grid = torch.arange(t, device=places.device).view(isqrt(t), isqrt(t))
    pairs = pairs.masked_fill(torch.eye(t, dtype=torch.bool, device=places.device), -1e4)
    entropy = nn.functional.cross_entropy
    own = grid.flatten().repeat(n) if targets is None else targets.flatten(0, 1)
    loss = entropy(places.flatten(0, 1), own)
    for scores, one, two in (
        (pairs[:, 0], grid[:, :-1].flatten(), grid[:, 1:].flatten()),
        (pairs[:, 1], grid[:-1].flatten(), grid[1:].flatten()),
    ):
        loss = loss + entropy(scores[:, one].flatten(0, 1), two.repeat(n)) / 2
        loss = loss + entropy(scores[:, :, two].transpose(1, 2).flatten(0, 1), one.repeat(n)) / 2
    return loss


def shuffled_losses(
    network: MessageNetwork, pieces: ShownRows, count: int, shape: tuple[int, int], keep: float, draws: Generator
) -> Iterator[Tensor]:
    """Yield the losses (`message_loss`) of one epoch on messages that are shuffled as a client shuffles them.

    `pieces` maps indices of images to features [n, T, F]; `shape` is (B ≥ 2 images per message, T tokens); `keep` is
    the share of its image's tokens that a row keeps.
    """
    prior = own_prior(shape[0], keep)
    for released, images in shuffled_messages(pieces, count, shape, keep, draws):
        yield message_loss(network(released, prior.to(released.device)), images)


def shuffled_messages(
    pieces: ShownRows, count: int, shape: tuple[int, int], keep: float, draws: Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the messages of one epoch of `shuffled_losses`, several together if they are small.

    Each item has the features of M messages [M, B, T, F], and the image of each token, int64 [M, B·T].
    """
    batch, tokens = shape
    messages = max(1, _TOKENS_OF_MESSAGES // (batch * tokens))
    for _ in range(message_steps(count, batch)):
        images = [torch.randperm(count, generator=draws)[:batch] for _ in range(messages)]
        own = pieces(torch.cat(images)).unflatten(0, (messages, batch)).flatten(1, 2)
        source = torch.stack([dealt_out(batch, tokens, keep, draws) for _ in range(messages)]).to(own.device)
        yield take(own, source.flatten(1)).unflatten(1, shape), source.flatten(1) // tokens


def message_steps(count: int, batch: int) -> int:
    """Number of steps in an epoch of `shuffled_losses`."""
    return min(_MESSAGE_STEPS, _MESSAGES_AN_IMAGE * max(1, min(count, _IMAGES_AN_EPOCH) // batch))


def message_loss(chances: Tensor, images: Tensor) -> Tensor:
    """The loss, a scalar: cross-entropy of K tokens' images [..., K], by log-probabilities [R, ..., K, B]."""
    return -chances.gather(-1, images.expand(chances.shape[:-1]).unsqueeze(-1)).mean()


def dealt_out(batch: int, tokens: int, keep: float, draws: Generator) -> Tensor:
    """Draw a batch shuffle that keeps the share `keep` of each image's tokens and spreads the rest over all rows.

    The result is int64 [B, T]: which token of the message each row releases. The order within a row is arbitrary.
    """
    kept = round(keep * tokens)
    own = torch.rand(batch, tokens, generator=draws).argsort(1) + tokens * torch.arange(batch).unsqueeze(1)
    pool = own[:, kept:].flatten()
    return torch.cat([own[:, :kept], pool[torch.randperm(len(pool), generator=draws)].view(batch, -1)], 1)
