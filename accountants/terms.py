"""Describe a guarantee in the terms of NIST SP 800-226: unit, neighbors, mechanism, ε and δ, composition, trust.

Each term's text is derived from the mechanism and its certificate; `wording` writes the sentences.
"""

from __future__ import annotations

from contextlib import suppress
from math import inf

from privkit.accountants import compile as compiled
from privkit.accountants.bounds import gdp
from privkit.accountants.bounds.numerical_composition import tight_bounds
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.parts import NoMixing, Poisson, PrivateUpdates, WithoutReplacement
from privkit.accountants.spec.secrets import HiddenMask, RandomAllocation
from privkit.accountants.wording import said
from privkit.shared.certificate import Certificate
from privkit.shared.rounding import rounded_down, rounded_up

NOT_DERIVED = "not derived"  # the text that replaces a number if no theorem here gives one
_UNITS = {
    "record": "one record: every release of it in the run",
    "client": "one client: all its records, with every release of them in the run",
}
_NEIGHBORS = {
    "replace_one": "replace-one: one {unit} is replaced by another; all others and their number stay",
    "add_or_remove_one": "add-or-remove-one: one {unit} is present or absent; all others stay",
}
_SITES = {
    "answers": "local: the client randomizes each answer before it leaves; the server is not trusted",
    "alone": "local: the client clips and adds noise before anything leaves it; the server is not trusted",
    "client": "distributed: each client clips and adds noise, and the guarantee holds for the mixture; the mixer is "
    "trusted, the server is not",
    "mixer": "a trusted mixer, or a sum under encryption: the noise is added to the mixture; the server is not trusted",
}


DP_SGD_TERMS = {
    "mechanism": "DP-SGD, as the row states: the gradient of each record is clipped, and their sum gets "
    "Gaussian noise in every step; privkit does not check this",
    "sampling": "with a sample rate, an independent secret coin puts each record into a batch; without one, every "
    "batch has every record",
    "trust model": "central: whoever trains holds the records and is trusted; whoever reads the model is not",
    "lower model": "none: the whole model is what is released",
}
"""Texts for a mechanism that is given in the words of DP-SGD; they replace the texts for split learning."""


def terms(mechanism: SplitMechanism, certificate: Certificate, *, tight: bool = True) -> dict[str, str]:
    """The guarantee of a mechanism in the terms of NIST SP 800-226, as a dict from term to text. With `tight`, a
    smaller μ of Gaussian DP is fitted if the run is not known to equal one Gaussian; this takes tenths of a second.

    Source: the terms are those of NIST SP 800-226 (2025); zCDP and μ: `bounds.gdp`.

    >>> from privkit.accountants import answer
    >>> from privkit.accountants.table import mechanism_of
    >>> one = mechanism_of({"mechanism": "gaussian", "sigma": 2, "dimensions": 4, "clip_high": 1})
    >>> said = terms(one, answer.epsilon(one, 1e-5))
    >>> said["unit of privacy"], said["Gaussian DP"]
    ('one record: every release of it in the run', 'μ = 1 at every δ')
    """
    told, rho = said(mechanism), certificate.quantities.get("zcdp_rho", inf)
    return {
        "unit of privacy": _UNITS[mechanism.unit],
        "neighbors": _NEIGHBORS[mechanism.relation].format(unit=mechanism.unit),
        "mechanism": "; ".join(told.mechanism),
        "sensitivity": _sensitivity(mechanism),
        "privacy parameters": _parameters(certificate),
        "zero-concentrated DP": f"ρ = {rounded_up(rho, 6)}" if rho < inf else NOT_DERIVED,
        "Gaussian DP": _mu(mechanism, certificate, tight),
        "composition": _composition(mechanism, certificate),
        "sampling": "; ".join(told.sampling),
        "trust model": _trust(mechanism),
        "lower model": "; ".join(told.lower_model),
    }


def _trust(mechanism: SplitMechanism) -> str:
    local = "answers" if mechanism.noise.distribution.answers else "alone"
    site = _SITES[local if isinstance(mechanism.mixing, NoMixing | HiddenMask) else mechanism.noise.site]
    secret = isinstance(mechanism.sampling, Poisson | WithoutReplacement) and mechanism.sampling.rate < 1
    if not secret and not isinstance(mechanism.participation, RandomAllocation):
        return site
    return (
        f"{site}; whoever draws the participants and forwards their anonymous messages is trusted to keep the draw "
        f"secret"
    )


def _sensitivity(mechanism: SplitMechanism) -> str:
    law = mechanism.noise.distribution
    if law.answers:
        return "all answers of a release may change"
    parts = [("smashed data", mechanism.smashed), ("labels", mechanism.labels)]
    norm = law.norm.upper()
    numbers = [
        f"{name} {part.sensitivity(mechanism.relation, law.norm):.6g}" for name, part in parts if part is not None
    ]
    return f"{norm}, of one release before mixing: {', '.join(numbers)}"


def _parameters(certificate: Certificate) -> str:
    if certificate.kind != "differential_privacy" or certificate.delta is None:
        return "nothing is proven: no ε with δ < 1"
    at_least = (
        "no lower bound is known"
        if certificate.lower is None
        else f"no proof from the specification alone gives less than ε = {rounded_down(certificate.lower, 6)}"
    )
    return f"ε = {rounded_up(certificate.epsilon, 6)}, δ = {rounded_up(certificate.delta, 6)}; {at_least}"


def _mu(mechanism: SplitMechanism, certificate: Certificate, tight: bool) -> str:
    """State the μ that holds at every δ. If composition gives a smaller μ for all δ above some value, state it, too."""
    plain = certificate.quantities.get("gdp_mu", inf)
    if plain == inf:
        return NOT_DERIVED
    text = f"μ = {rounded_up(plain, 6)} at every δ"
    run = compiled.steps(mechanism)
    if not tight or all(step.shift(count) < inf and not step.remark for step, count in run):
        return text
    fits = []
    for composed in tight_bounds(run):
        with suppress(ValueError):  # no test has both error rates above the floor, or the grid would be too large
            fits.append(gdp.mu(composed.pairs))
    fit = min(fits, key=lambda one: one.mu, default=None)
    if fit is None or fit.mu >= plain:
        return text
    return f"μ = {rounded_up(fit.mu, 6)} at δ ≥ {rounded_up(fit.delta_floor, 6)}; {text}"


def _composition(mechanism: SplitMechanism, certificate: Certificate) -> str:
    times = f"{mechanism.rounds:,} round{'s' * (mechanism.rounds > 1)}"
    times += f" of {mechanism.releases:,} releases" if mechanism.releases > 1 else ""
    if isinstance(updates := mechanism.lower_model, PrivateUpdates):
        times += f" and {updates.steps:,} updates of the lower model"
    return f"{times}, by {certificate.method} ({certificate.source})"
