"""Model completion: a head on the client's own segment, trained on a few labeled records, predicts the labels."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import Mounting, NamingAttack, NotApplicable, Scores, Session
from privkit.attacks.fit import Resumable, fit
from privkit.attacks.goals.labels import Epoch, LabelObservation, one_against_rest
from privkit.attacks.labels.release_clustering import seeds_among
from privkit.constraints import Count, NonNegative, Positive, Whole
from privkit.torch_utils.seeded import seeded

_STEPS = 50  # training steps of an epoch
_KEPT = 0.99
"""Factor on the running average of weights at each step; the released code takes 0.999 and trains longer."""
_AT_ONCE = 500


@dataclass(frozen=True, kw_only=True)
class ModelCompletion(NamingAttack):
    """Infer labels by training a head (last layers) on the client's own lower segment, with few labeled records.

    The adversary is a client without labels: it owns the lower segment and all of its records, and knows the labels of
    a few of them. Training also uses the unlabeled records. The adversary is passive: it follows the protocol in
    training. A defense of the release does not stop the attack: the client knows its smashed data before the defense.
    The published active variant is not implemented: there, a party of a vertical split inflates its own steps to make
    the server rely on this party.

    Attributes:
        positive: the label, an integer ≥ 0, whose records get the highest scores.
        labeled: number ≥ 1 of records of each label whose label the adversary knows; the paper takes 4 on CIFAR-10.
        tune: the trained part: only the "head", or "all", which includes the copied lower segment.
        epochs: number ≥ 1 of epochs of the attack's training, of 50 steps each.
        batch: number ≥ 1 of labeled records in a step, which also has twice as many unlabeled records.
        rate: learning rate of Adam, > 0.
        unlabeled: final weight of the unlabeled records in the loss, ≥ 0; it grows from 0.
        temperature: temperature > 0 by which the guessed labels of unlabeled records are sharpened; lower is sharper.
        mixing: value > 0 of both parameters of the beta distribution from which the ratio of mixed records is drawn.
        epoch: the epoch whose released records are attacked: a number from 0, or from the end (−1 is the last);
            "pooled" for all together, "every" for each by itself. The lower segment is always taken after training.

    The head has batch normalization, a ReLU and a linear layer. It is trained by MixMatch: guessed labels are
    sharpened, and all records are mixed in pairs. Here they are mixed at the cut, which suits records of any domain.

    Source: Fu et al. 2022, "Label inference attacks against vertical federated learning" (USENIX Security), §4, with
    head, rate, temperature, mixing and weight of the authors' repository; Berthelot et al. 2019 for MixMatch.
    """

    name: ClassVar[str] = "model_completion"
    needs: ClassVar[frozenset[str]] = frozenset({"lower", "auxiliary", "known_rows", "known_labels", "label_shares"})

    positive: Whole = 1
    labeled: Count = 4
    tune: Literal["head", "all"] = "head"
    epochs: Count = 8
    batch: Count = 16
    rate: Positive = 2e-3
    unlabeled: NonNegative = 50.0
    temperature: Positive = 0.8
    mixing: Positive = 0.75
    epoch: Epoch = -1

    @property
    def mounting(self) -> Mounting[LabelObservation, Scores]:
        return Mounting(labeled=self.labeled, gradients=False)

    def run(self, observation: LabelObservation, generator: Generator, session: Session | None = None) -> Scores:
        lower, records, shares = observation.lower, observation.auxiliary, observation.label_shares
        if lower is None or records is None or shares is None:
            raise NotApplicable("model_completion needs the lower segment, its records and the shares of the labels")
        total = sum(len(view.smashed) for view in observation.views)
        if len(records) != total:
            raise NotApplicable(f"model_completion needs its own {total} records, one per row, got {len(records)}")
        examples = torch.arange(total, device=records.device)
        seeds, labels = seeds_among(examples, observation, self.name)
        if int(labels.max()) >= len(shares):
            raise NotApplicable(f"model_completion distinguishes labels 0..{len(shares) - 1}, got {int(labels.max())}")
        training = _Completion(self, lower, records, (seeds, labels), len(shares), generator)
        fit(training, self.epochs, session, objective="model_completion's loss")
        return one_against_rest(training.logits(), self.positive, examples)


class _Completed(nn.Module):
    def __init__(self, lower: nn.Module, features: int, labels: int) -> None:
        super().__init__()
        self.lower = lower
        self.head = nn.Sequential(nn.BatchNorm1d(features), nn.ReLU(), nn.Linear(features, labels))

    def forward(self, records: Tensor) -> Tensor:
        logits: Tensor = self.head(self.lower(records).flatten(1).float())
        return logits


class _Completion(Resumable):
    def __init__(
        self,
        spec: ModelCompletion,
        lower: nn.Module,
        records: Tensor,
        known: tuple[Tensor, Tensor],
        labels: int,
        generator: Generator,
    ) -> None:
        self.spec, (self.seeds, self.labels), self.count = spec, known, labels
        self.others = torch.ones(len(records), dtype=torch.bool, device=records.device)
        self.others[self.seeds] = False
        self.others = self.others.nonzero().flatten()
        lower = deepcopy(lower).eval().to(records.device).requires_grad_(spec.tune == "all")
        with torch.no_grad():
            released = torch.cat([lower(part).flatten(1).float() for part in records.split(_AT_ONCE)])
        frozen = spec.tune == "head"
        self.records = released if frozen else records
        self.seed = int(torch.randint(2**31, (1,), generator=generator))
        with seeded(torch.device("cpu"), self.seed):
            model = _Completed(nn.Flatten() if frozen else lower, released.shape[1], labels)
        self.model = model.to(records.device)
        self.averaged = deepcopy(self.model).requires_grad_(False)
        trained = [weight for weight in self.model.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.Adam(trained, lr=spec.rate)

    def epoch(self, number: int) -> float:
        draws = Generator().manual_seed(self.seed + number)
        ratios = np.random.default_rng(self.seed + number)
        first, mixing = number * _STEPS, self.spec.mixing
        losses = [self._step(first + step, draws, ratios.beta(mixing, mixing)) for step in range(_STEPS)]
        return float(torch.stack(losses).mean().item())

    def _step(self, step: int, draws: Generator, ratio: float) -> Tensor:
        def drawn(count: int, among: int) -> Tensor:
            return torch.randint(among, (count,), generator=draws).to(self.seeds.device)

        spec, alone = self.spec, not len(self.others)
        of = drawn(spec.batch, len(self.seeds))
        rows = self.others if alone else self.others[drawn(2 * spec.batch, len(self.others))]
        pairs = torch.randperm(len(of) + len(rows), generator=draws).to(self.seeds.device)
        self.model.head.train()
        weight = min(spec.unlabeled, spec.unlabeled * step / (_STEPS * spec.epochs))
        loss = self.loss(of, rows, pairs, max(ratio, 1 - ratio), weight)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        for average, now in zip(_weights_of_state(self.averaged), _weights_of_state(self.model), strict=True):
            average.lerp_(now, 1 - _KEPT if step else 1.0)
        return loss.detach()

    def loss(self, of: Tensor, rows: Tensor, pairs: Tensor, kept: float, weight: float) -> Tensor:
        """The loss of B labeled records (`of`) and M ≥ 0 unlabeled ones (`rows`), mixed in `pairs` int64 [B + M].

        A record has the share `kept` in [1/2, 1] of the mixture with its partner; unlabeled records have the `weight`.
        """
        targets = nn.functional.one_hot(self.labels[of], self.count).float()
        records = [self.records[self.seeds[of]]]
        if len(rows):
            records.append(self.records[rows])
            with torch.no_grad():
                sharp = (self.model(records[1]).log_softmax(1) / self.spec.temperature).softmax(1)
            targets = torch.cat([targets, sharp])
        sent = self.model.lower(torch.cat(records)).flatten(1).float()
        logits = self.model.head(kept * sent + (1 - kept) * sent[pairs])
        targets = kept * targets + (1 - kept) * targets[pairs]
        loss: Tensor = -(targets * logits.log_softmax(1)).sum(1)[: len(of)].mean()
        if len(rows):
            loss = loss + weight * (logits.softmax(1) - targets)[len(of) :].square().mean()
        return loss

    @torch.no_grad()
    def logits(self) -> Tensor:
        self.averaged.eval()
        return torch.cat([self.averaged(part) for part in self.records.split(_AT_ONCE)])

    def stateful(self) -> dict[str, Any]:
        return {"model": self.model, "averaged": self.averaged, "optimizer": self.optimizer, "seed": self.seed}


def _weights_of_state(module: nn.Module) -> list[Tensor]:
    return [value for value in module.state_dict().values() if value.is_floating_point()]
