"""Receipts (reports) of stages that permute, mix, or prove nothing. For noise see `charge.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from privkit.accountants.shuffles import certificates
from privkit.accountants.shuffles.permutations import log10_distinct_orderings, log10_orders_alike
from privkit.accountants.shuffles.variants import Variant
from privkit.accountants.spec.sensitivity import ClipSet
from privkit.defenses.base import ONE_RELEASE, Place, Receipt, ReleaseCount
from privkit.shared.certificate import Certificate
from privkit.torch_utils.alike import multiplicities

NOT_DP = "without noise; no differential privacy (ε = ∞ for every δ < 1)"
"""The end of the field `Nothing.reason`, for a stage that adds no noise."""

_PLACED = "each token carries the position embedding of its place and so reveals that place: the shuffle hides no order"
_UNSHOWN = (
    "a count of orders assumes that no token reveals its place, which is not shown for this model: permuting the "
    "patches of an image, or the words of a text, must permute its tokens and must not change a class token; for this "
    "model it does, or the test is not possible"
)
_DRAWN = {
    "every_round": "ratios are drawn afresh in every round",
    "once": "ratios are drawn once, and every client keeps its own for all rounds",
}


@dataclass(frozen=True, kw_only=True)
class Nothing(Receipt):
    """Receipt (record of what a defense stage did) of a stage that proves nothing, with the reason."""

    reason: str  # the reason, as the end of a sentence that begins "nothing is proven"
    quantities: Mapping[str, float] = field(default_factory=dict)  # named numbers behind the reason
    assumptions: tuple[str, ...] = ()  # what else a reader should know, one sentence each
    source: str = "by definition"  # paper and equation
    bound: ClipSet | None = None  # the set to which each image's smashed data are clipped; None if unbounded
    # which of T positions each of M messages kept, bool [M, T], or each of M·B images, [M·B, T]; None without masks
    masks: Tensor | None = None
    stationary: bool = False  # whether every round has the same masks
    masked_by: Place = "client"  # who masks; what a mixer or server masks, clients have sent

    @property
    def payload_share(self) -> float | None:
        if self.masks is None:
            return None
        return self.masks.double().mean().item() if self.masked_by == "client" else 1.0

    def certificate(self, release_count: ReleaseCount = ONE_RELEASE) -> Certificate:
        """A certificate without a guarantee, with the reason and some quantities.

        If positions (tokens or patches) are masked, the quantity `positions_seen` is the expected share of a record's
        positions that the server sees in the whole run. Fresh masks keep a position in an epoch with probability q, the
        share of positions that they keep, so this share is 1 − (1 − q)^epochs. For masks that are boxes it is an upper
        bound, because boxes cover the middle more often.
        """
        quantities, share = dict(self.quantities), self.payload_share
        if share is not None:
            quantities["payload_share"] = share
        if self.masks is not None:
            kept = self.masks.double().mean().item()
            quantities["positions_seen"] = kept if self.stationary else 1 - (1 - kept) ** release_count.epochs
        return Certificate(
            kind="nothing",
            statement=f"nothing is proven: {self.reason}",
            quantities=quantities,
            assumptions=self.assumptions,
            source=self.source,
        )


@dataclass(frozen=True, kw_only=True)
class Permuted(Receipt):
    """Receipt of a stage that permuted the tokens of every message."""

    # int64 [M, B, T]; output token (m, b, t) was token `source % T` of image `source // T`; images are numbered over
    # all messages, message by message
    source: Tensor
    # number of tokens that each image of a batch certainly kept; None if no token left its image
    kept: int | None = None
    variant: Variant = "final_shuffle"  # variant of Algorithm 2, for a shuffle over the batch
    assumptions: tuple[str, ...] = ()  # sentences about these tokens that are added to the certificate's assumptions
    proof: str = ""  # source of the count, if it is not the paper's own statement
    # False if tokens carry a position embedding, so that each reveals its place; None if it is unknown whether tokens
    # hide their places. In both cases nothing is proven.
    hides_order: bool | None = True
    # number of tokens among the T that stand for no patch, such as a class token; they can be recognized and are not
    # counted
    other_tokens: int = 0
    # float [M, B, T, D], the permuted tokens; None if they are unknown, so that no two are known to be equal
    # (`compile.run` then takes the released tokens)
    tokens: Tensor | None = None

    @property
    def multiplicities(self) -> list[int] | None:
        """How often each distinct token occurs in the image with the fewest different orders.

        If the shuffle moves tokens between images, the batch with the fewest orders is taken. None if tokens are
        unknown, or if some of them stand for no patch (`other_tokens`).
        """
        if self.tokens is None or self.other_tokens:
            return None
        first, last = (2, 3) if self.kept is None else (1, 3)
        units = self.tokens.flatten(first, last - 1).flatten(0, first - 1)
        return min((multiplicities(unit) for unit in units), key=log10_distinct_orderings)

    @property
    def log10_alike(self) -> float:
        return log10_orders_alike(self.multiplicities or ())

    @property
    def order(self) -> Tensor:
        return self.source

    @property
    def permutation(self) -> Tensor:
        """The place of each output token in the image from which it came, int64 [M, B, T]."""
        return self.source % self.source.shape[-1]

    @property
    def own_image_share(self) -> float:
        """Share of output tokens that come from their own image, in [0, 1]."""
        m, b, t = self.source.shape
        own = torch.arange(m * b, device=self.source.device).view(m, b, 1)
        return (self.source // t == own).double().mean().item()

    def certificate(self, release_count: ReleaseCount = ONE_RELEASE) -> Certificate:
        """A certificate that states the number of possible orders of one message in one release."""
        if not self.hides_order:
            return Nothing(reason=_UNSHOWN if self.hides_order is None else _PLACED).certificate()
        _, b, t = self.source.shape
        said = self.assumptions
        if self.other_tokens:
            beside = f"{self.other_tokens} of the {t} tokens stand for no patch, such as a class token"
            if self.kept is not None:
                return Nothing(reason=f"{beside}, and orders of a batch are counted for patches alone").certificate()
            said += (f"{beside}: they can be told from patches, and are not counted",)
        if self.kept is None:
            tokens = max(1, t - self.other_tokens)
            count = certificates.patch_shuffle(tokens=tokens, multiplicities=self.multiplicities)
        else:
            count = certificates.batch_shuffle(
                tokens=t, batch=b, kept=self.kept, variant=self.variant, multiplicities=self.multiplicities
            )
        if release_count.epochs > 1:
            said += (
                f"the count is that of one release; the run makes {release_count.epochs} of every image, each freshly "
                "shuffled, and what they show together is not counted",
            )
        return replace(count, assumptions=(*count.assumptions, *said), source=self.proof or count.source)


@dataclass(frozen=True, kw_only=True)
class Mixed(Receipt):
    """Receipt of a stage that mixed messages of several clients without noise."""

    ratios: Tensor  # float64 [G, k], weight λ_i of each client of a group in data and labels; N_i/N with masks
    present: Tensor  # bool [G, k], which places of a group hold a client
    masks: Tensor | None  # bool [G, k, T], the positions that each client filled; None if data were added up
    published: bool = True  # whether the server learns ratios and masks
    shuffled: bool = False  # whether the mixed positions were permuted afterwards
    drawn: str = "every_round"  # "every_round" if each round has new ratios, "once" if all rounds have the same

    @property
    def counts(self) -> Tensor | None:
        """Number of positions that each client of a group filled, int64 [G, k]; None without masks."""
        return None if self.masks is None else self.masks.sum(2)

    @property
    def payload_share(self) -> float:
        """Mean share of its smashed data that a client sends, in [0, 1]; 1 if the messages are added up."""
        return 1.0 if self.masks is None else self.ratios[self.present].mean().item()

    def certificate(self, release_count: ReleaseCount = ONE_RELEASE) -> Certificate:
        """A certificate without a guarantee.

        Its quantities are all in [0, 1]: `own_share`, the mean weight of a client in its mixture; `largest_ratio`, the
        largest weight; `payload_share`, the share of its smashed data that a client sends; and, with masks,
        `positions_seen`, the expected share of a record's positions that the server sees in the whole run. If groups
        never change and one of them is smaller, this is an upper bound.
        """
        taken = self.ratios[self.present]
        own, largest = taken.mean().item(), taken.max().item()
        quantities = {"own_share": own, "largest_ratio": largest, "payload_share": self.payload_share}
        if self.masks is None:
            how = f"a weighted sum of smashed data and labels is released {NOT_DP}"
            known = "whoever knows or guesses the other members' data can subtract them and read this client's"
        else:
            how = f"positions that masks kept are released as they are, and a sum of labels, {NOT_DP}"
            share = taken if self.drawn == "once" else taken.mean()  # in each round, of one client or on average
            quantities |= {"positions_seen": (1 - (1 - share) ** release_count.epochs).mean().item()}
            known = "positions that fit together may show their owner, and labels of other members reveal this one's"
        said = ["whoever mixes is trusted: it sees each client's own message", known, _DRAWN[self.drawn]]
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
