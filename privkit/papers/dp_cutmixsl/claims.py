"""DP-SL, DP-MixSL and DP-CutMixSL as published: Theorem 1, Corollary 1, and the cases in which they fail."""

from __future__ import annotations

from math import isfinite, log, sqrt

from privkit.accountants import validate
from privkit.accountants.bounds.subsampling import amplify
from privkit.papers import paper
from privkit.papers.contract import ONE_RELEASE_ASSUMPTION, claimed
from privkit.papers.dp_cutmixsl.setting import NAMES, GroupRelease
from privkit.shared.certificate import Certificate


def smashed_rdp(setting: GroupRelease, order: float) -> float:
    """Rényi bound for smashed data at order α > 1, in nats: ε₁,s(α) = αΔ²D_s/(2σ_s²); ValueError if it overflows. Δ,
    D_s and σ_s are the fields `clip`, `dimensions` and `sigma` of `setting`."""
    return _rdp(order, setting.clip, setting.dimensions, "sigma", setting.sigma)


def label_rdp(setting: GroupRelease, order: float) -> float:
    """Rényi bound for labels at order α > 1, in nats: ε₁,y(α) = αD_y/(2σ_y²); 0 if no labels are released. D_y and σ_y
    are the fields `label_dimensions` and `sigma_labels` of `setting`."""
    sigma = setting.sigma if setting.sigma_labels is None else setting.sigma_labels
    bound = _rdp(order, 1.0, setting.label_dimensions, "sigma_labels", sigma)
    return 0.0 if setting.labels == "none" else bound


def rdp(setting: GroupRelease, order: float) -> float:
    """The Rényi-DP bound of Theorem 1 at order α > 1, in nats: ε₁ (no mixing), ε₂ (Mixup) or ε₃ (CutMix).

    The largest mixing ratio λ_max enters squared (for Mixup and all labels) or linearly (for CutMix's smashed data).
    The paper requires integers α ≥ 2, but the formula holds for all α > 1.

    Source: the DP-CutMixSL paper, Theorem 1, Eqs. 18-20.
    """
    ratio = setting.ratio
    smashed = ratio if setting.mechanism == "dp_cutmixsl" else ratio * ratio
    return smashed * smashed_rdp(setting, order) + ratio * ratio * label_rdp(setting, order)


def conversion(order: float, delta: float) -> float:
    """ε_o(δ) = ln(1/δ)/(α − 1) at order α > 1: (α, ε)-Rényi DP implies (ε + ε_o, δ)-DP.

    Source: Mironov 2017, Proposition 3; Corollary 1 of the DP-CutMixSL paper.
    """
    return -log(validate.delta(delta)) / (validate.real("order", order, above=1) - 1)


def best_order(setting: GroupRelease, delta: float) -> float:
    """The order α > 1 at which Theorem 1's Rényi bound ε(α), converted at δ, gives the smallest ε(α) + ε_o(δ).

    Since ε(α) = αc and ε_o(δ) = ln(1/δ)/(α − 1), this order is 1 + √(ln(1/δ)/c). It also minimizes Corollary 1's ε,
    which grows with ε(α) + ε_o(δ). It is often below the order 2 that the paper uses.

    >>> from privkit.papers.dp_cutmixsl.setting import table_1
    >>> round(best_order(table_1("dp_sl", group=2, sigma=16 / 255), 1e-5), 4)
    1.2018
    """
    slope = max(rdp(setting, 2) / 2, 1e-300)
    return 1 + max(sqrt(-log(validate.delta(delta)) / slope), 1e-12)


def corollary_1_epsilon(setting: GroupRelease, order: float, delta: float) -> float:
    """ε′ of Corollary 1, for k of n sampled clients: ln(1 + (k/n)(e^{ε(α) + ε_o(δ)} − 1)) at one order α > 1.

    ε(α) is Theorem 1's Rényi bound (`rdp`), and ε_o(δ) its `conversion` to (ε, δ)-DP.

    Source: the DP-CutMixSL paper, Corollary 1, Eqs. 22-24.
    """
    return amplify(rdp(setting, order) + conversion(order, delta), setting.group / setting.clients)


def theorem_1(setting: GroupRelease, *, order: float, delta: float) -> Certificate:
    """The claim of Theorem 1, as a certificate: its Rényi bound at α = `order`, converted to (ε, δ)-DP.

    The claim is not a valid bound if mixing ratios λ are random. It can also be too small in four cases: clients add
    the noise, so that the theorem's variance is wrong; a client fills ⌈λN⌉ > λN of N patches; these patches hold a
    larger share of the coordinates than of the patches; or the squared distance of two labels can exceed the theorem's
    D_y.

    Source: the DP-CutMixSL paper, Theorem 1, with the conversion of Mironov 2017 that it names.
    """
    epsilon = rdp(setting, order) + conversion(order, delta)
    return _certificate(setting, epsilon, order, delta, "Theorem 1", _objections(setting, order))


def corollary_1(setting: GroupRelease, *, order: float, delta: float) -> Certificate:
    """The claim of Corollary 1, as a certificate at δ: Theorem 1 at one order, amplified by sampling k of n clients.

    If clients are really sampled, the same ε even holds at δ·k/n (`quantities["delta_after_sampling"]`). The claim is
    not a valid bound if Theorem 1's is not, or if groups are round-robin, so that every client takes part.

    Source: the DP-CutMixSL paper, Corollary 1, which takes α = 2.
    """
    objections = _objections(setting, order)
    if setting.sampling == "partition" and setting.group < setting.clients:
        objections.append(
            f"the factor k/n = {setting.group}/{setting.clients} needs a secret random subset, but round-robin groups "
            "use every client in every round"
        )
    epsilon = corollary_1_epsilon(setting, order, delta)
    return _certificate(setting, epsilon, order, delta, "Corollary 1", objections)


def _certificate(
    setting: GroupRelease, epsilon: float, order: float, delta: float, theorem: str, objections: list[str]
) -> Certificate:
    rate = setting.group / setting.clients
    assumptions = [
        "neighbors differ in one record of one client; the number of clients and their ratios stay the same",
        f"every one of the {setting.dimensions} released coordinates is clamped to an interval of width "
        f"{setting.clip:g} before the noise, and (CutMix) belongs to a masked patch, the class token included",
        ONE_RELEASE_ASSUMPTION,
    ]
    if theorem == "Corollary 1":
        assumptions.append("the k clients are a uniform subset, drawn anew and kept secret from the server")
    if setting.labels == "one_hot" and setting.label_dimensions > 2:
        assumptions.append(
            f"one-hot labels differ by at most 2 in squared distance, so the label term is "
            f"{setting.label_dimensions / 2:g} times too large"
        )
    caution = f"; δ = {delta:g} proves little: publishing everything with that chance satisfies it"
    return claimed(
        f"{NAMES[setting.mechanism]} as published: ε = {epsilon:.6g} at δ = {delta:g} for one release"
        f"{caution if delta > 1e-3 else ''}",
        epsilon,
        delta,
        objection="; ".join(objections),
        method=f"{theorem} as published, Rényi order {order:g}, conversion by Mironov",
        order=float(order),
        quantities={
            "rdp": rdp(setting, order),
            "rdp_smashed": smashed_rdp(setting, order),
            "rdp_labels": label_rdp(setting, order),
            "conversion": conversion(order, delta),
            "mixing_ratio": setting.ratio,
            **({"sampling_rate": rate, "delta_after_sampling": rate * delta} if theorem == "Corollary 1" else {}),
        },
        assumptions=tuple(assumptions),
        source=f"{paper('dp_cutmixsl').citation}, {theorem}",
    )


def _objections(setting: GroupRelease, order: float) -> list[str]:
    """Reasons why Theorem 1 is not a bound for this release; empty if it is a bound."""
    objections = []
    ratio, mixes = setting.ratio, setting.mechanism != "dp_sl" and setting.group > 1
    if mixes and setting.concentration is not None and ratio < 1:  # λ_max = 1 bounds every draw
        objections.append(
            f"the theorem fixes the ratios, but the ratios are drawn from Dir({setting.concentration:g}), and ratios "
            "near 1 dominate the Rényi bound of the mixture"
        )
    # The true bound for fixed ratios: mixed shares of the squared diameters, divided by the variance of the noise after
    # mixing. This variance is least if the other clients share the rest evenly.
    noise = ratio**2 + (1 - ratio) ** 2 / (setting.group - 1) if mixes and setting.noise_site == "client" else 1.0
    diameter, kept, held = setting.label_diameter, setting.kept, setting.held
    smashed = held if setting.mechanism == "dp_cutmixsl" else ratio**2 / noise
    labels = ratio**2 / noise * diameter / setting.label_dimensions
    true = smashed * smashed_rdp(setting, order) + labels * label_rdp(setting, order)
    if true <= rdp(setting, order) * (1 + 1e-12):
        return objections
    if noise < 1 and (setting.mechanism == "dp_mixsl" or setting.labels != "none"):
        uneven = (
            "; for uneven ratios even the order of Mixup and CutMix reverses"
            if ratio * setting.group > 1 + 1e-9
            else ""
        )
        objections.append(
            f"the theorem adds the noise after mixing, but noise that clients add is averaged, too{uneven}"
        )
    if kept > ratio * (1 + 1e-12):
        objections.append(
            f"the theorem counts λN patches, but whole patches are kept: a share of {kept:.4g} instead of λ = "
            f"{ratio:.4g} (so the masks cannot be exclusive)"
        )
    if held > kept * (1 + 1e-12):
        objections.append(
            f"the theorem assumes that the kept share of the {setting.patches} patches holds the same share of the "
            f"{setting.dimensions} coordinates, but the kept patches can hold a share of {held:.4g}"
        )
    if diameter > setting.label_dimensions:
        objections.append(f"labels can differ by {diameter} in squared distance, but D_y = {setting.label_dimensions}")
    return objections


def _rdp(order: float, width: float, dimensions: int, name: str, sigma: float) -> float:
    ratio = float(width) / float(sigma)
    divergence = validate.real("order", order, above=1) * dimensions * ratio * ratio / 2
    if not isfinite(divergence):
        raise ValueError(f"{name}={sigma!r} is too small: the Rényi bound exceeds the largest floating-point number")
    return divergence
