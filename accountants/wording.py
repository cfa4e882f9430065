"""Write a certificate's assumptions, warnings and statement as sentences."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from typing import NamedTuple

from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.mixing import DirichletCounts, DirichletRatio, RealizedRatios
from privkit.accountants.spec.parts import CutMix, EveryRound, NoMixing, Poisson, PrivateUpdates, WithoutReplacement
from privkit.accountants.spec.secrets import HiddenMask, RandomAllocation, ShuffledEpochs
from privkit.accountants.spec.sensitivity import Categories, Known
from privkit.shared.rounding import rounded_down, rounded_up

_LARGE_DELTA = 1e-3  # a δ above this is warned about: publishing one record in a thousand would be allowed
_MIXING = {"none": "no mixing", "mixup": "Mixup", "cutmix": "CutMix"}


class _Said(NamedTuple):
    mechanism: tuple[str, ...]  # clip, noise and mixing
    sampling: tuple[str, ...]  # who takes part, and who learns it
    lower_model: tuple[str, ...]  # how the lower model (the clients' segment) is trained


def assumptions(mechanism: SplitMechanism) -> tuple[str, ...]:
    """State the assumptions of a mechanism's guarantee, one sentence each: clip, noise, mixing, sampling, lower model.

    >>> from privkit.accountants.table import mechanism_of
    >>> one = mechanism_of({"mechanism": "gaussian", "sigma": 2, "dimensions": 4, "clip_high": 1})
    >>> assumptions(one)[0]
    'smashed data are clipped by the client before noise to clamp(low=0.0, high=1.0, dimensions=4)'
    """
    return tuple(chain.from_iterable(said(mechanism)))


def said(mechanism: SplitMechanism) -> _Said:
    """The assumptions of the guarantee, grouped by topic."""
    return _Said(
        mechanism=tuple(_said_of_mechanism(mechanism)),
        sampling=tuple(_said_of_sampling(mechanism)),
        lower_model=tuple(_composition(mechanism)),
    )


def _said_of_mechanism(mechanism: SplitMechanism) -> list[str]:
    noise = mechanism.noise
    if isinstance(categories := mechanism.smashed, Categories):
        each = f"{categories.answers:,} answer{'s' if categories.answers > 1 else ''}"
        return [
            f"a release holds {each} of {categories.classes:,} categories, and nothing else that depends on the record",
            "every answer is replaced by a uniform draw of the categories with probability "
            f"{rounded_up(noise.smashed, 6)}, by a coin of its own, afresh in every release",
        ]
    said = [_said_of_clip(mechanism.smashed)]
    if mechanism.labels is None:
        said.append("labels stay with the client; nothing that reveals them is released")
    else:
        said.append(f"labels lie in {_spec(mechanism.labels)} and are released with noise of their own")
    where = "by each client before masks and mixing" if noise.site == "client" else "once to the mixed release"
    if isinstance(mechanism.mixing, NoMixing | HiddenMask):
        where = "by the client"
    said.append(
        f"{noise.law} noise of {noise.distribution.unit} {rounded_up(noise.smashed, 6)}"
        + (f" ({rounded_up(noise.labels, 6)} on labels)" if noise.labels is not None else "")
        + f" is added {where}, fresh and independent in every coordinate and release"
    )
    return said + _said_of_mixing(mechanism)


def _said_of_clip(smashed: object) -> str:
    if isinstance(smashed, Known):
        apart = f"{rounded_down(smashed.value, 6)} apart in {smashed.norm.upper()}"
        apart += f" under {smashed.relation.replace('_', '-')}"
        return f"neighbors' smashed data are at most {apart}, as stated by the user; no clip is known that ensures it"
    return f"smashed data are clipped by the client before noise to {_spec(smashed)}"


def statement(mechanism: SplitMechanism, epsilon: float, delta: float) -> str:
    """State a mechanism's guarantee in one sentence: ε, δ, the unit and relation of neighbors, and the rounds."""
    rounds = f"{mechanism.rounds:,} round{'s' if mechanism.rounds > 1 else ''}"
    if isinstance(part := mechanism.participation, ShuffledEpochs):
        rounds += f" in shuffled epochs of {part.epoch_rounds:,}"
    if isinstance(updates := mechanism.lower_model, PrivateUpdates):
        rounds += f" and {updates.steps:,} update{'s' * (updates.steps > 1)} of the lower model"
    if mechanism.rounds > 1 and isinstance(getattr(mechanism.mixing, "ratio", None), DirichletRatio | DirichletCounts):
        rounds += f" with mixing ratios drawn {'once for all of them' if mechanism.drawn_once else 'afresh in each'}"
    return f"{claim(mechanism, epsilon, delta)}, over {rounds}"


def claim(mechanism: SplitMechanism, epsilon: float, delta: float) -> str:
    """State a guarantee in the form "(ε = …, δ = …)-differential privacy of one record under replace-one"."""
    relation = mechanism.relation.replace("_one", "").replace("_", "-") + "-one"
    at = f"ε = {rounded_up(epsilon, 4)}, δ = {rounded_up(delta, 3)}"
    return f"({at})-differential privacy of one {mechanism.unit} under {relation}"


def warnings(mechanism: SplitMechanism, delta: float) -> tuple[str, ...]:
    """Warn of a δ above 1e-3 or above 1/(number of clients), in a sentence; the result is empty for a smaller δ."""
    if delta > _LARGE_DELTA:
        return (f"δ = {delta:g} is large: publishing each unit with probability {delta:g} would satisfy it, too",)
    units = getattr(mechanism.participation, "clients", None)
    if units and delta > 1 / units:
        return (f"δ = {delta:g} is above 1/n = {1 / units:g}: publishing one unit of n in full would satisfy it, too",)
    return ()


@cache
def library_versions() -> dict[str, str]:
    """Versions of numpy, scipy, dp-accounting and opacus; "absent" for a library that is not installed."""
    versions = {}
    for name in ("numpy", "scipy", "dp-accounting", "opacus"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "absent"
    return versions


def _said_of_mixing(mechanism: SplitMechanism) -> list[str]:
    mixing = mechanism.mixing
    if isinstance(mixing, NoMixing):
        return []
    if isinstance(mixing, HiddenMask):
        return _hidden_mask(mechanism, mixing)
    ratio = mixing.ratio
    said = [
        f"the server sees the {_MIXING[mixing.kind]} of {mixing.group} clients only, never a client's own message: "
        "whoever mixes is trusted, or the sum is computed under encryption",
        "mixing ratios and masks are drawn independently of the data",
    ]
    if isinstance(ratio, DirichletRatio | DirichletCounts):
        said.append(
            "ratios are drawn once, and every client keeps its own for all rounds"
            if mechanism.drawn_once
            else "ratios are drawn afresh in every round"
        )
    if isinstance(ratio, DirichletRatio | DirichletCounts) and not ratio.published:
        said.append("ratios are hidden, but accounted for as if published: other clients' data can reveal them")
    if mechanism.seated and mechanism.noise.distribution.attained(mechanism):
        said.append(
            "in every round, the drawn clients take seats (places in the mixture) uniformly at random, the same for "
            "all its releases; a ratio belongs to a seat, and the mean over the seats is charged"
        )
    if isinstance(ratio, RealizedRatios):
        said.append("ratios are public; the number is for the ratios that were realized")
    if isinstance(mixing, CutMix) and mixing.overfull:
        said.append("a client fills ⌈λN⌉ patches; such counts sum to more than N, so masks may overlap")
    if isinstance(mixing, CutMix) and (dimensions := getattr(mechanism.smashed, "dimensions", None)) is not None:
        most = -(-dimensions // mixing.patches)
        said.append(
            f"every patch holds at most {most:,} of the {dimensions:,} coordinates"
            if mechanism.ragged
            else f"every patch holds {most:,} of the {dimensions:,} coordinates"
        )
    if mechanism.releases > 1 and isinstance(ratio, DirichletRatio | DirichletCounts) and not mechanism.drawn_once:
        said.append("ratios are drawn once per round or once per release; the bound holds for either")
    if not mechanism.smashed.additive and isinstance(mixing, CutMix):
        said.append(
            "the clip bounds the whole release only: masks are uniform and fresh"
            if mechanism.random_masks
            else "the clip bounds the whole release only, so masks that keep a part of it amplify nothing"
        )
    if mechanism.noise.site == "client":
        said.append(
            "other clients of a group may collude with the server"
            if mixing.colluding
            else "the other clients of a group keep their own noise from the server"
        )
    return said


def _hidden_mask(mechanism: SplitMechanism, mask: HiddenMask) -> list[str]:
    said = [
        f"each release keeps {mask.kept:,} of {mask.patches:,} patches, drawn uniformly and afresh; the other patches "
        "hold noise alone"
    ]
    if mechanism.relation == "add_or_remove_one":
        return [*said, "the server is not told the mask; an absent release is noise alone"]
    return [*said, "masks are accounted for as if the server knew them: data that both neighbors share can reveal them"]


def _said_of_sampling(mechanism: SplitMechanism) -> list[str]:
    part = mechanism.participation
    if isinstance(part, EveryRound) or (isinstance(part, WithoutReplacement) and part.rate == 1):
        said = ["every client takes part in every round: nothing is credited to sampling"]
    elif mechanism.participation_shows:
        how = f"with probability {rounded_down(part.rate, 6)} in each round, by coins that are independent of the data"
        why = (
            "colluding clients know who takes part"
            if mechanism.colluders_know
            else "lower models that learn show who took part"
        )
        said = [f"each unit takes part {how}", f"{why}: releases are rarer, but nothing is credited to a secret sample"]
    elif isinstance(part, ShuffledEpochs):
        said = [
            f"each unit is in one of the {part.epoch_rounds:,} batches of an epoch, which have a fixed size and are "
            "dealt by a permutation that does not depend on the data",
            f"in every epoch the client's {part.records:,} records are dealt by a uniform order that the server does "
            "not learn; each is alone in a row, and apart from this noisy row, all that is released is the same for "
            "every record"
            if part.records is not None
            else "the server is assumed to know which batch, since the other units can reveal it: nothing is credited "
            "to the shuffle",
        ]
    elif isinstance(part, RandomAllocation):
        said = [
            f"each unit takes part in exactly {part.participations:,} of every {part.epoch_rounds:,} rounds, drawn "
            "uniformly, secretly, afresh in every epoch and independently of other units"
        ]
    elif isinstance(part, Poisson):
        said = [
            f"each unit takes part by an independent secret coin of probability {rounded_down(part.rate, 6)}, tossed "
            "afresh in every round"
        ]
    else:
        said = [
            f"{part.chosen} of {part.clients} clients are drawn uniformly and secretly each round and seated at "
            "random; messages carry no identity, and nobody tells the server who took part",
            "what a client would release in a round does not depend on the rounds in which it was drawn",
        ]
    if mechanism.relation == "add_or_remove_one":
        said.append(
            "a dummy (zeros with the same noise) takes an absent unit's place in the batch, and no other unit moves: "
            "a removal that deals all batches anew is not covered"
            if isinstance(part, ShuffledEpochs)
            else "an absent unit counts as zeros with the same noise: noise is added once to a sum, or a dummy of "
            "noise alone arrives in the unit's place; a missing message, or a sum with less noise, is not covered"
        )
    return said


def _composition(mechanism: SplitMechanism) -> list[str]:
    lower = mechanism.lower_model
    if isinstance(lower, PrivateUpdates):
        said = [
            f"the lower model's {lower.steps:,} updates carry noise of {rounded_up(lower.noise_multiplier, 6)} times "
            "their replace-one sensitivity and are charged here"
        ]
        if lower.rate < 1:
            said.append("batches of the updates are secret and drawn separately from those of the releases")
        return said
    if lower == "frozen":
        return ["the lower model is frozen and does not depend on the private data"]
    return ["the lower model is trained by its client alone and leaves it only through the releases"]


def _spec(clip: object) -> str:
    fields = ", ".join(f"{name}={value}" for name, value in vars(clip).items())
    return f"{getattr(clip, 'kind', type(clip).__name__)}({fields})" if fields else str(getattr(clip, "kind", clip))
