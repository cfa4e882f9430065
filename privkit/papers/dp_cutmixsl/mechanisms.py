"""The paper's mechanisms as specifications for the accountants, and their proven ε compared with Corollary 1."""

from __future__ import annotations

from dataclasses import dataclass, replace

from privkit.accountants import answer
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.mixing import DirichletRatio, FixedRatio
from privkit.accountants.spec.parts import CutMix, EveryRound, Mixup, Noise, NoMixing, WithoutReplacement
from privkit.accountants.spec.sensitivity import Clamp, OneHot
from privkit.papers.dp_cutmixsl.claims import corollary_1
from privkit.papers.dp_cutmixsl.group_size import ORDER
from privkit.papers.dp_cutmixsl.setting import GroupRelease, Mechanism, table_1, table_1_value
from privkit.shared.certificate import Certificate

_CONCENTRATION = 2.0  # α_M of the Dirichlet law from which the paper's experiments draw mixing ratios


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One mechanism of the paper, with the parameters of its Table 1."""

    name: Mechanism
    group: int = 2  # number k of clients in a mixing group
    sigma: float = 16 / 255  # standard deviation σ_s = σ_y of the noise on smashed data and labels
    rounds: int = 1  # number T of releases
    # False for the corollary's assumptions (λ = 1/k, a secret k of 10 clients). True for the paper's experiments:
    # ratios from Dir(2) and round-robin groups.
    drawn: bool = False

    def proven(self, delta: float) -> Certificate:
        """The certificate with the smallest proven ε at δ."""
        return answer.epsilon(self.specification(), delta)

    def setting(self) -> GroupRelease:
        """The mechanism as the input of the paper's formulas."""
        setting = table_1(self.name, group=self.group, sigma=self.sigma)
        if not self.drawn:
            return setting
        concentration = None if self.name == "dp_sl" else _CONCENTRATION
        return replace(setting, sampling="partition", concentration=concentration)

    def published(self, delta: float) -> tuple[float, str]:
        """The ε of T rounds by Corollary 1 (T times its ε at δ/T), and the reason why it is no bound, or ""."""
        claim = corollary_1(self.setting(), order=ORDER, delta=delta / self.rounds)
        return self.rounds * claim.epsilon, claim.objection

    def specification(self) -> SplitMechanism:
        """The mechanism as the input of the accountants."""
        ratio: FixedRatio | DirichletRatio = (
            DirichletRatio(concentration=_CONCENTRATION, clients=self.group)
            if self.drawn
            else FixedRatio.equal(self.group)
        )
        patches = int(table_1_value("N"))
        mixing: dict[Mechanism, NoMixing | Mixup | CutMix] = {
            "dp_sl": NoMixing(),
            "dp_mixsl": Mixup(ratio=ratio),
            "dp_cutmixsl": CutMix(ratio=ratio, patches=patches),
        }
        return specification(
            mixing[self.name], sigma=self.sigma, chosen=None if self.drawn else self.group, rounds=self.rounds
        )


def specification(
    mixing: NoMixing | Mixup | CutMix | None = None,
    *,
    sigma: float = 16 / 255,
    chosen: int | None = None,
    rounds: int = 1,
) -> SplitMechanism:
    """Specify a release with smashed data, labels and n clients as in the paper's Table 1, for the accountants. `sigma`
    is the standard deviation of the noise on smashed data and labels. `chosen` clients are drawn in each round; None
    means that all take part."""
    clients = int(table_1_value("n"))
    return SplitMechanism(
        smashed=Clamp(low=0, high=table_1_value("Δ"), dimensions=int(table_1_value("D_s"))),
        labels=OneHot(),
        noise=Noise(smashed=sigma, labels=sigma),
        lower_model="frozen",
        mixing=mixing or NoMixing(),
        participation=EveryRound() if chosen is None else WithoutReplacement(chosen=chosen, clients=clients),
        rounds=rounds,
    )
