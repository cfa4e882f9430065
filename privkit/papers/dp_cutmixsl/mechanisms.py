"""The paper's mechanisms as specifications, and what is proven of them beside Corollary 1."""

from __future__ import annotations

from dataclasses import dataclass, replace

from privkit.accountants import answer
from privkit.accountants.base import Certificate
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.mixing import DirichletRatio, FixedRatio
from privkit.accountants.spec.parts import CutMix, EveryRound, Mixup, Noise, NoMixing, WithoutReplacement
from privkit.accountants.spec.sensitivity import Clamp, OneHot
from privkit.papers.dp_cutmixsl.claims import corollary_1
from privkit.papers.dp_cutmixsl.group_size import ORDER
from privkit.papers.dp_cutmixsl.setting import Mechanism, table_1

NAMES: dict[Mechanism, str] = {"dp_sl": "DP-SL", "dp_mixsl": "DP-MixSL", "dp_cutmixsl": "DP-CutMixSL"}
CONCENTRATION = 2.0
"""α_M of the ratios that the paper's experiments draw."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One mechanism in the setting of Table 1.

    Attributes:
        name: the mechanism.
        group: k clients in a mixing group.
        sigma: σ_s = σ_y.
        rounds: T releases.
        drawn: False grants the corollary its assumptions (λ = 1/k, a secret k of 10 clients). True has what the
            paper runs: ratios from Dir(2) and round-robin groups.
    """

    name: Mechanism
    group: int = 2
    sigma: float = 16 / 255
    rounds: int = 1
    drawn: bool = False

    def proven(self, delta: float) -> Certificate:
        """The smallest ε that is proven."""
        return answer.epsilon(self.specification(), delta)

    def published(self, delta: float) -> tuple[float, str]:
        """T times Corollary 1 at δ/T, since the corollary is for one release; and why it is no bound, if it is none."""
        setting = table_1(self.name, group=self.group, sigma=self.sigma)
        if self.drawn:
            concentration = None if self.name == "dp_sl" else CONCENTRATION
            setting = replace(setting, sampling="partition", concentration=concentration)
        claim = corollary_1(setting, order=ORDER, delta=delta / self.rounds)
        return self.rounds * claim.epsilon, claim.objection

    def specification(self) -> SplitMechanism:
        """The mechanism as the accountants read it."""
        setting = table_1(self.name, group=self.group, sigma=self.sigma)
        ratio = (
            DirichletRatio(concentration=CONCENTRATION, clients=self.group)
            if self.drawn
            else FixedRatio.equal(self.group)
        )
        assert setting.patches is not None
        mixing = {
            "dp_sl": NoMixing(),
            "dp_mixsl": Mixup(ratio=ratio),
            "dp_cutmixsl": CutMix(ratio=ratio, patches=setting.patches),
        }
        return SplitMechanism(
            smashed=Clamp(low=0, high=setting.clip, dimensions=setting.dimensions),
            labels=OneHot(),
            noise=Noise(smashed=self.sigma, labels=self.sigma),
            lower_model="frozen",
            mixing=mixing[self.name],
            participation=EveryRound()
            if self.drawn
            else WithoutReplacement(chosen=self.group, clients=setting.clients),
            rounds=self.rounds,
        )
