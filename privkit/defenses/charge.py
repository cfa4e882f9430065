"""Computes the privacy certificate of noisy releases from the bound, the noise, the mixing and the release count."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Any, Literal

from torch import Tensor

from privkit.accountants import answer
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.mixing import DirichletCounts, DirichletRatio, FixedCounts, FixedRatio
from privkit.accountants.spec.parts import UNMIXED, CutMix, Mixup, Noise, NoMixing, PrivateUpdates
from privkit.accountants.spec.sensitivity import ClipSet
from privkit.defenses.base import ONE_RELEASE, Place, Receipt, ReleaseCount
from privkit.shared.certificate import Certificate
from privkit.shared.rounding import rounded_up

Mixing = NoMixing | Mixup | CutMix

WORTH_COMPOSING = 1e3
"""Above this ε, no tighter bound would show protection, so numerical composition, which takes seconds, is skipped."""

_IDEAL = (
    "noise is treated as real numbers from a secret seed: attacks on the low bits of floats or on the generator (32 "
    "bits of seed on a CPU) are not covered; smashed data are finite: a NaN passes the clip"
)
GIVEN_LABELS = (
    "the server learns the labels without noise, directly or by gradients that follow from them: ε does not cover "
    "labels, and neighboring data sets have the same labels"
)
_CLEAR_AFTERWARDS = "images that are sent after training pass without noise: nothing is proven for them"
_TRUSTED = "a mixer adds the noise in the client's place: it is trusted, and sees the smashed data"
_SHUFFLED = (
    "a permutation puts each record into one batch of an epoch: the server is assumed to know which batch, so the "
    "shuffle earns no credit"
)
_NOT_COVERED = (
    "this covers the labels that the server holds, against whoever sees the gradients that come back; it says nothing "
    "about images or smashed data, which are released as they are"
)
_SERVER_MIXES = "the server mixes and so gets each client's own noisy message: nothing is credited to mixing"


@dataclass(frozen=True, kw_only=True)
class Noised(Receipt):
    """Receipt (record for the accountants) of a stage that bounded data, added noise and possibly mixed clients.

    A server that adds noise to its gradients protects its own labels; then `covers` is "labels", and `clip` bounds the
    gradient of one image.
    """

    # the set to which each image's smashed data were clipped, with their number of coordinates; None if unbounded
    clip: ClipSet | None
    noise: Noise  # law, σ (or scale) on smashed data and labels, and whether clients or the mixer added it
    mixing: Mixing  # how the messages of a full group were combined, and by which law ratios or counts were drawn
    labels: ClipSet | None = None  # the set that contained each label; None for labels without noise
    # what is protected: "release", the smashed data and labels that clients send, or "labels", the server's own labels
    covers: Literal["release", "labels"] = "release"
    added_by: Place = "client"  # the party that added the noise
    mixed_by: Place = "mixer"  # the party that mixed
    at_inference: bool = True  # whether test images pass the defense, too
    ratios: Tensor | None = None  # drawn mixing ratios of k clients in G groups, float [G, k]; None without mixing
    counts: Tensor | None = None  # numbers of positions that each client fills, int64 [G, k]; None without masks
    present: Tensor | None = None  # which places of a group hold a client, bool [G, k]; None if all do
    published: bool = True  # whether the server learns the clients' places, ratios and masks

    def certificate(self, release_count: ReleaseCount = ONE_RELEASE) -> Certificate:
        return (charge if self.covers == "release" else _charge_labels)(self, release_count)

    def mechanism(self, release_count: ReleaseCount = ONE_RELEASE) -> SplitMechanism | None:
        if self.clip is None:
            return None
        if self.covers == "labels":
            return _of_labels(self.clip, self.noise, release_count)
        try:
            return _charged(self, release_count)[0]
        except ValueError:
            return None

    @property
    def payload_share(self) -> float | None:
        if self.counts is None or self.ratios is None:
            return None
        return (self.ratios if self.present is None else self.ratios[self.present]).double().mean().item()

    @property
    def shared(self) -> str:
        if self.covers == "labels":
            return "gradients of several rows meet in the server's weights"
        return "" if isinstance(self.mixing, NoMixing) else "a row mixes the data of several clients"


def charge(receipt: Noised, release_count: ReleaseCount) -> Certificate:
    """Compute the privacy certificate of a run in which every round is defended as the receipt says.

    The certificate protects one record if the lower segment is frozen, or trained by noisy updates, whose privacy loss
    is then included. A lower segment trained on raw data carries records from round to round, so the guarantee then
    covers the whole client. ε is computed from the distribution of the mixing ratios; the ratios that were drawn are
    only reported. If nothing can be proven, the certificate is of kind "nothing" with the reason.

    Source: mathematics of the accountants; DP-CutMixSL Eq. 18-20 with the place of the noise corrected.
    """
    try:
        mechanism, said = _charged(receipt, release_count)
        certificate = answer.epsilon(mechanism, release_count.delta, tight=False)
        if certificate.epsilon < WORTH_COMPOSING:
            certificate = answer.epsilon(mechanism, release_count.delta)
    except ValueError as reason:  # the accountant refuses what it has no proof for, and says why
        return nothing(str(reason))
    if certificate.kind == "nothing":
        return certificate
    if not _every_round_as_charged(receipt, mechanism):
        certificate = replace(certificate, lower=None)
    if receipt.added_by == "mixer" and isinstance(mechanism.mixing, NoMixing):
        said.append(_TRUSTED)
    return _complete(certificate, receipt, release_count, said)


def _charged(receipt: Noised, release_count: ReleaseCount) -> tuple[SplitMechanism, list[str]]:
    """The mechanism whose ε is certified, and sentences on its mixing; raises a ValueError if nothing is proven."""
    if receipt.clip is None:
        raise ValueError("the smashed data have no bound, so no noise can hide a record; give clip= or bound=")
    if receipt.added_by == "server":
        raise ValueError("the server adds the noise to smashed data that it already holds")
    mixing, said = _credited(receipt, release_count)
    client = release_count.lower_model in ("trained", "averaged")
    if not client and release_count.copies > 1 and _drawn_every_round(mixing):
        raise ValueError(
            f"a client has fewer records than a batch, so one record is in a message up to {release_count.copies} "
            "times, under the same random ratios: no bound was derived; use smaller batches, or fixed ratios "
            "(concentration=inf)"
        )
    mechanism = SplitMechanism(
        smashed=receipt.clip,
        noise=receipt.noise,
        lower_model=release_count.lower_model,
        unit="client" if client else "record",
        labels=receipt.labels,
        mixing=mixing,
        rounds=release_count.rounds if client else release_count.epochs,
        releases=release_count.batch_size if client else 1,
    )
    return mechanism, said


def _every_round_as_charged(receipt: Noised, mechanism: SplitMechanism) -> bool:
    """Whether each round is mixed exactly as the computed ε assumes, and the server learns the mixing weights.

    False if a group is larger than assumed. Also False if positions that are left over after an equal division go to
    random clients, because then no client has the largest share in every round.
    """
    if isinstance(receipt.mixing, NoMixing) or receipt.mixed_by == "server":
        return True
    dealt = isinstance(receipt.mixing.ratio, FixedCounts) and not receipt.mixing.ratio.even
    return receipt.published and mechanism.mixing == receipt.mixing and not dealt


def _of_labels(clip: ClipSet, noise: Noise, release_count: ReleaseCount) -> SplitMechanism:
    """The mechanism for the ε of labels, which releases every gradient of the run with noise. Its sensitivity is valid
    for any state of the server."""
    released = release_count.rounds * release_count.batch_size * release_count.clients
    return SplitMechanism(smashed=clip, noise=noise, lower_model="frozen", rounds=released)


def _charge_labels(receipt: Noised, release_count: ReleaseCount) -> Certificate:
    """Compute the privacy certificate for one label, as if every gradient of the run depended on this label.

    A label affects more than its own image's gradient: it changes the server's weights, hence all later gradients, and
    through batch normalization also the other gradients of its batch. So each of the rounds·batch·clients gradients is
    assumed to change by as much as the clipping allows. The bound holds for anything that the server computes, even if
    all labels change.

    Source: the Gaussian or Laplace mechanism, adaptively composed (accountants); derived here for gradients.
    """
    if receipt.clip is None:
        return nothing(f"no clip= bounds a gradient; {_NOT_COVERED}", ends="")
    mechanism = _of_labels(receipt.clip, receipt.noise, release_count)
    released = mechanism.rounds
    certificate = answer.epsilon(mechanism, release_count.delta, tight=False)
    if certificate.kind == "nothing":
        reason = f"no ε follows from {released} gradients with this noise; {_NOT_COVERED}"
        return replace(nothing(reason, ends=""), source=certificate.source)
    norm = receipt.noise.distribution.norm
    epsilon, delta = rounded_up(certificate.epsilon, 4), rounded_up(release_count.delta, 3)
    return replace(
        certificate,
        statement=(
            f"the gradients sent back are ({epsilon}, {delta})-DP in the labels, for the replacement of one "
            f"label or of all; {_NOT_COVERED}"
        ),
        delta=release_count.delta,
        lower=None,
        relation="replace_one",
        unit="record",
        covers="labels",
        quantities={
            "gradients": float(released),
            "sensitivity": receipt.clip.sensitivity("replace_one", norm),
            **_other_definitions(certificate),
        },
        assumptions=(
            f"all {released} gradients of the run are seen (rounds × batch × clients), and each may move by 2·clip "
            f"in {norm.upper()}, since the server's weights carry a label into every later gradient",
            "the server releases nothing else: neither its segment nor losses or accuracies on these labels",
            "the labels stay with the server, and the noise is fresh and secret",
        ),
        source=f"{certificate.source}; clipped as in Abadi et al. 2016, here for gradients at the cut",
    )


def _credited(receipt: Noised, release_count: ReleaseCount) -> tuple[Mixing, list[str]]:
    """The mixing whose effect on ε counts in every round, and sentences that explain it."""
    mixing = receipt.mixing
    if isinstance(mixing, NoMixing):
        return mixing, []
    if receipt.mixed_by == "server":
        return UNMIXED, [_SERVER_MIXES]
    members = _fewest(receipt, release_count)
    if members == mixing.group:
        return mixing, []
    said = [
        f"{mixing.group} clients are mixed, but in some rounds a client is in a group of {members}: every round is "
        f"charged as if its group had {members}"
    ]
    if members == 1:
        return UNMIXED, [*said, "a client alone in its group is not mixed: nothing is credited to mixing"]
    # A smaller group has larger ratios λ. But if clients add the noise, ε depends on λ²/‖λ‖², which for random λ may be
    # smaller in a smaller group. So the group is charged as if its clients colluded, which replaces this term by 1.
    collude = receipt.noise.site == "client"
    ratio: Any = _of_members(mixing, members)  # of the same class as the mixing's ratio
    return replace(mixing, ratio=ratio, colluding=mixing.colluding or collude), said


def _drawn_every_round(mixing: Mixing) -> bool:
    """Whether random ratios are drawn anew in each round, so that the rounds' ratios are independent."""
    ratio = getattr(mixing, "ratio", None)
    return isinstance(ratio, DirichletRatio | DirichletCounts) and ratio.drawn == "every_round"


def _fewest(receipt: Noised, release_count: ReleaseCount) -> int:
    """Number of clients in the smallest group of the run, as far as this round and the release count show it."""
    sizes = [receipt.mixing.group]
    if release_count.unmatched:
        sizes.append(release_count.unmatched)
    if receipt.present is not None:
        sizes += [size for size in receipt.present.sum(1).tolist() if size]
    return min(sizes)


def _of_members(mixing: Mixup | CutMix, members: int) -> FixedRatio | FixedCounts | DirichletRatio | DirichletCounts:
    ratio = mixing.ratio
    if isinstance(ratio, DirichletRatio | DirichletCounts):
        return replace(ratio, clients=members)
    if isinstance(ratio, FixedCounts) and isinstance(mixing, CutMix):
        return FixedCounts(counts=equal_counts(mixing.patches, members))
    return FixedRatio.equal(members)


def equal_counts(positions: int, members: int) -> tuple[int, ...]:
    """Divide `positions` among `members` clients: numbers that differ by at most one, the larger numbers first."""
    return tuple(positions // members + (seat < positions % members) for seat in range(members))


def _complete(certificate: Certificate, receipt: Noised, release_count: ReleaseCount, said: list[str]) -> Certificate:
    """Add what the accountant does not know: assumptions and quantities from the receipt and the release count."""
    assumptions, statement = list(certificate.assumptions), certificate.statement
    if receipt.labels is None:
        certificate = given_labels(certificate, release_count.lower_model)
        statement, (first, *assumptions) = certificate.statement, certificate.assumptions
        said = [first, *said]
    if not receipt.at_inference:
        said = [*said, _CLEAR_AFTERWARDS]
    if certificate.unit == "record" and release_count.rounds > release_count.epochs and release_count.copies == 1:
        said = [*said, _SHUFFLED]
    said = [*said, _IDEAL, *_past_one_over_n(certificate, release_count)]
    quantities = _quantities(receipt) | _other_definitions(certificate)
    return replace(certificate, statement=statement, assumptions=(*assumptions, *said), quantities=quantities)


def given_labels(certificate: Certificate, lower_model: object) -> Certificate:
    """Restate a certificate for a run whose labels are sent in the clear: it protects only the smashed data."""
    updates = " and the updates" if isinstance(lower_model, PrivateUpdates) else " alone"
    rest = [line for line in certificate.assumptions if not line.startswith("labels stay with the client")]
    statement = f"{certificate.statement}; of the smashed data{updates}, given the labels"
    return replace(certificate, statement=statement, assumptions=(GIVEN_LABELS, *rest))


def _past_one_over_n(certificate: Certificate, release_count: ReleaseCount) -> list[str]:
    """A warning if δ is so large that it allows one record (or client) to be published in full."""
    records = release_count.clients * release_count.batch_size * max(1, release_count.rounds // release_count.epochs)
    units = release_count.clients if certificate.unit == "client" else records
    if units <= 1 or release_count.delta <= 1 / units:
        return []
    warning = f"δ = {release_count.delta:g} is above 1/n = {1 / units:g}"
    return [f"{warning}: publishing one {certificate.unit} of n in full would satisfy it, too"]


def _quantities(receipt: Noised) -> dict[str, float]:
    assert receipt.clip is not None
    norm = receipt.noise.distribution.norm
    quantities = {
        "noise_smashed": receipt.noise.smashed,
        "sensitivity_smashed": receipt.clip.sensitivity("replace_one", norm),
    }
    if receipt.noise.labels is not None:
        quantities["noise_labels"] = receipt.noise.labels
    if (dimensions := getattr(receipt.clip, "dimensions", None)) is not None:
        quantities["coordinates"] = float(dimensions)
    if receipt.ratios is not None:
        quantities["largest_ratio_drawn"] = float(receipt.ratios.max())
    if receipt.counts is not None:
        quantities["most_positions_drawn"] = float(receipt.counts.max())
    return quantities


def _other_definitions(certificate: Certificate) -> dict[str, float]:
    """ρ of zero-concentrated and μ of Gaussian differential privacy of the same run, if they are derived for it."""
    found = {name: certificate.quantities.get(name, inf) for name in ("zcdp_rho", "gdp_mu")}
    return {name: value for name, value in found.items() if isfinite(value)}


def nothing(reason: str, ends: str = "; no differential privacy") -> Certificate:
    """A certificate that proves nothing and says why."""
    return Certificate(kind="nothing", statement=f"nothing is proven: {reason}{ends}", source="by definition")
