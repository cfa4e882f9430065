"""What masks and mixing without noise did, and what that proves: nothing."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from privkit.accountants.base import Certificate
from privkit.defenses.base import ONE_RELEASE, ReleaseCount

NOT_DP = "without noise; no differential privacy (ε = ∞ for every δ < 1)"


DRAWN = {
    "every_round": "ratios are drawn afresh in every round",
    "once": "ratios are drawn once, and every client keeps its own for all rounds",
}


@dataclass(frozen=True, kw_only=True)
class CutoutReceipt:
    """What a call of a Cutout really did.

    Attributes:
        masks: bool [M, T], the positions that each message kept.
        stationary: whether every round has these masks.
        positions: in words, how the server learns which positions these are.
    """

    masks: Tensor
    stationary: bool
    positions: str

    @property
    def payload_share(self) -> float:
        """Share of positions that travelled, in [0, 1]."""
        return self.masks.double().mean().item()

    def certificate(self, release_count: ReleaseCount = ONE_RELEASE) -> Certificate:
        """Nothing is proven; `positions_seen` is the expected share of a record's positions released at least once.

        Fresh masks keep each position in an epoch with probability q = `payload_share`, so that 1 − (1 − q)^epochs of
        them are seen; boxes prefer the middle, for them that is an upper bound (concavity).
        """
        share = self.payload_share
        seen = share if self.stationary else 1 - (1 - share) ** release_count.epochs
        return Certificate(
            kind="nothing",
            statement=f"nothing is proven: the positions that masks kept are released as they are, {NOT_DP}",
            quantities={"payload_share": share, "positions_seen": seen},
            assumptions=(
                self.positions,
                "what a mask dropped may still be guessed from the positions around it",
                "masks are the same in every round: what they drop is never released"
                if self.stationary
                else "masks are fresh every round: over the epochs the server sees more positions of one record",
            ),
            source="by definition",
        )


@dataclass(frozen=True, kw_only=True)
class MixingReceipt:
    """What a call of a mixing defense without noise really did.

    Attributes:
        ratios: float64 [G, k], weight λ_i of every seat in smashed data and labels; N_i/N with masks.
        present: bool [G, k], seats that were taken.
        masks: bool [G, k, T], the positions that each seat filled; None where the data were superposed.
        published: whether the server learns ratios and masks.
        shuffled: whether the mixed positions were permuted afterwards.
        drawn: "every_round" or "once": whether the next round has new ratios or these.
    """

    ratios: Tensor
    present: Tensor
    masks: Tensor | None
    published: bool = True
    shuffled: bool = False
    drawn: str = "every_round"

    @property
    def counts(self) -> Tensor | None:
        """int64 [G, k], positions that each seat filled."""
        return None if self.masks is None else self.masks.sum(2)

    @property
    def payload_share(self) -> float:
        """Share of its smashed data that a client sends on average, in [0, 1]: all of it where data are superposed."""
        return 1.0 if self.masks is None else self.ratios[self.present].mean().item()

    def certificate(self, release_count: ReleaseCount = ONE_RELEASE) -> Certificate:
        """Nothing is proven, whoever else is in the group.

        Quantities: `own_share`, mean weight of a client in its message; `largest_ratio`, λ_max; `payload_share`; with
        masks `positions_seen`, as for Cutout.
        """
        taken = self.ratios[self.present]
        own, largest = taken.mean().item(), taken.max().item()
        quantities = {"own_share": own, "largest_ratio": largest, "payload_share": self.payload_share}
        if self.masks is None:
            how = f"a weighted sum of smashed data and labels is released {NOT_DP}"
            known = "whoever knows the other members' data, or guesses them, subtracts them and reads this client's"
        else:
            how = f"positions that masks kept are released as they are, and a sum of labels, {NOT_DP}"
            quantities |= {"positions_seen": 1 - (1 - own) ** release_count.epochs}
            known = (
                "who owns a position may be read from what fits together, and labels of other members reveal this one's"
            )
        said = ["whoever mixes is trusted: it sees each client's own message", known, DRAWN[self.drawn]]
        if largest == 1 or release_count.unmatched == 1:
            said.append("some message holds one client's data alone")
        if not self.published:
            said.append("ratios and masks are hidden, for which no credit is taken: other members' data reveal them")
        if self.shuffled:
            said.append(
                "no order is counted as a secret: the positions may carry a position embedding, which undoes it"
            )
        return Certificate(
            kind="nothing",
            statement=f"nothing is proven: {how}",
            quantities=quantities,
            assumptions=tuple(said),
            source="by definition",
        )
