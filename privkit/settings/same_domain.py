"""Checks that dataset, model and all other parts that read records have one domain, such as images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from privkit.errors import UsageError
from privkit.parts.registry import Component, load, parse, part_table
from privkit.shared.measures import IDENTIFIED, KINDS, OF_RECORDS

if TYPE_CHECKING:
    from privkit.settings.config import AuditConfig


def domain_of(dataset: Component) -> str:
    """The domain of a dataset: "images", "tokens" or "tables"; `UsageError` if a plug-in names another domain."""
    domain = dataset.spec.domain if "domain" in dir(dataset.spec) else None
    if domain not in KINDS:
        raise UsageError(f"dataset {dataset.name} has domain={domain!r}; its class must name one of {', '.join(KINDS)}")
    return str(domain)


def model_for(dataset: Component, given: Any) -> Component:
    """The model that the user named (`given`), or the default model for the dataset's domain.

    >>> from privkit.parts.registry import parse
    >>> model_for(parse("datasets", "breast_cancer"), "lenet5")
    Traceback (most recent call last):
    privkit.errors.UsageError: lenet5 reads images, and breast_cancer holds table rows; models for them: difm, table_mlp
    """
    domain = domain_of(dataset)
    model = parse("models", KINDS[domain].model if given is None else given)
    read = model.spec.domain if "domain" in dir(model.spec) else "images"
    if read in (domain, "any"):
        return model
    fitting = [name for name, target in part_table("models").items() if getattr(load(target), "domain", "") == domain]
    raise UsageError(
        f"{model.name} reads {KINDS[read].noun}, and {dataset.name} holds {KINDS[domain].noun}; models for them: "
        f"{', '.join(sorted(fitting))}"
    )


def check_same_domain(config: AuditConfig) -> None:
    """Raise `UsageError` if another part or a gate (a pass/fail condition) has another domain than the dataset."""
    kind, name = KINDS[domain_of(config.dataset)], config.dataset.name
    if config.other is not None:
        other = domain_of(config.other)
        if other != kind.name:
            raise UsageError(
                f"auxiliary={config.auxiliary} holds {KINDS[other].noun}, and {name} holds {kind.noun}; name a dataset "
                f"of {kind.noun}, or disjoint"
            )
    if not kind.pictures:
        held, augment = f"{name} holds {kind.noun}", config.training.augment
        if augment != "none":
            raise UsageError(f"augment={augment} moves pixels, and {held}; use augment=none")
        if config.features:
            raise UsageError(f"features={','.join(config.features)} looks at images, and {held}; leave it out")
        if config.metrics:
            raise UsageError(f"metric={config.metrics[0].label} looks at images, and {name} holds none; leave it out")
    measured = {one.name: None for one in (*kind.measures, *kind.perceived, IDENTIFIED)}
    for gate in config.gates:
        if gate.measure in OF_RECORDS and gate.measure not in measured:
            raise UsageError(
                f"the gate {gate} cannot be judged: {name} holds {kind.noun}, whose guesses have "
                f"{', '.join(measured)}; name one of these"
            )
