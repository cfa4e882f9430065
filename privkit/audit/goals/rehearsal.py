"""Times an attack before training, with an untrained model and a few rounds of random records."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from privkit.audit.assembled import assemble
from privkit.audit.defended import DefendedModel
from privkit.audit.goals.trained import TrainedContext
from privkit.audit.seed_data import SeedData
from privkit.domains.base import Pools, several
from privkit.domains.partition import ClientPartition
from privkit.domains.splits import Splits
from privkit.domains.stand_in import RandomPool
from privkit.parts.registry import Component
from privkit.run.plan import Cell
from privkit.run.progress import Silent
from privkit.settings.config import AuditConfig
from privkit.wire.channel import record_rounds

ROUNDS = 4  # number of rounds in an epoch of random records; the adversary holds the same records
_NONE: Any = None


@dataclass(frozen=True, kw_only=True)
class Rehearsal(TrainedContext):
    """The context in which a dry run times an attack. It has no run folder and no result row, and trains one epoch."""

    records: RandomPool  # random records and labels, in the form of the dataset
    device: torch.device  # the model's device

    @classmethod
    def of(cls, config: AuditConfig, defense: Component, pools: Pools, device: torch.device) -> Rehearsal:
        """A rehearsal without an attack, with the smallest batch that the defense and batch normalization allow."""
        one = pools.train.take(np.zeros(1, dtype=np.int64))
        edge, upper, _ = assemble(config, defense.spec, one.domain, pools.classes, 0)
        unused = ("seed_data", "folder", "log", "made_of", "spent", "recording", "certificate", "row", "release_count")
        return cls(
            config=replace(config, budget=replace(config.budget, epochs=1)),
            cell=Cell(id="", model_id="", defense=defense, attack=_NONE, seed=0),
            progress=Silent(),
            model=DefendedModel(edge=edge.to(device), upper=upper.to(device), known={}),
            records=RandomPool(count=1, classes=pools.classes, domain=one.domain, several=several(one.y)),
            device=device,
            **dict.fromkeys(unused, _NONE),
        ).sized(min(config.training.batch_size, max(2, defense.spec.smallest_batch)))

    @property
    def batch_size(self) -> int:
        """Records per client and round."""
        return self.config.training.batch_size

    def sized(self, batch_size: int) -> Rehearsal:
        """The same rehearsal with another number of records per client and round."""
        clients = self.config.protocol.spec.clients
        own = self.records.take(np.arange(ROUNDS * clients * batch_size)).to(self.device)
        rows = torch.arange(len(own)).view(clients, -1)
        seed_data = SeedData(
            splits=Splits(private=own, auxiliary=own, test=own, classes=self.records.classes),
            shares=ClientPartition(rows=rows, sizes=torch.full((clients,), rows.shape[1])),
            victims=own[: self.config.protocol.spec.active * batch_size],
            auxiliary=own,
            dropped=0,
            hashes={},
        )
        training = replace(self.config.training, batch_size=batch_size)
        return replace(self, config=replace(self.config, training=training), seed_data=seed_data)

    def attacked(self, attack: Component) -> Rehearsal:
        """A copy of this rehearsal with an attack, which may change the copy's model and records."""
        edge, upper = deepcopy((self.model.edge, self.model.upper))
        model, passes = DefendedModel(edge=edge.eval(), upper=upper.eval(), known={}), attack.spec.mounting.passes
        seed_data, cell = self.seed_data.copied(), replace(self.cell, attack=attack)
        sent = record_rounds(edge, seed_data.victims, batch_size=self.batch_size, seed=0, passes=passes)
        return replace(self, cell=cell, seed_data=seed_data, model=model, recording=sent)

    def lower(self) -> nn.Module | None:
        """The lower segment; None if the clients' segments would differ after training."""
        protocol, frozen = self.config.protocol.spec, self.config.training.freeze_lower
        return super().lower() if protocol.active == 1 or protocol.average != "never" or frozen else None

    def upper_history(self) -> list[nn.Module] | None:
        """The current server's segment as its only past state, since a dry run repeats no training."""
        return None if (upper := self.upper()) is None else [upper]
