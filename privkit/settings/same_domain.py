"""Checks that dataset, model and all other parts that read records have one domain, such as images."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from privkit.errors import UsageError
from privkit.parts.registry import Component, load, parse, part_table
from privkit.shared.measures import KINDS


def domain_of(dataset: Component) -> str:
    """The domain of a dataset: "images", "tokens" or "tables"; a plug-in's dataset may name a wrong one."""
    domain = dataset.spec.domain if "domain" in dir(dataset.spec) else None
    if domain not in KINDS:
        raise UsageError(
            f"dataset {dataset.name} has domain={domain!r}; its class must name one of {', '.join(KINDS)} as `domain`"
        )
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
    raise reads_another(model.name, read, dataset.name, domain, fitting)


def reads_another(model: str, read: str, dataset: str, domain: str, fitting: Iterable[str]) -> UsageError:
    """The error for a model that reads another domain than the dataset's; `fitting` names models that would do."""
    return UsageError(
        f"{model} reads {KINDS[read].noun}, and {dataset} holds {KINDS[domain].noun}; models for them: "
        f"{', '.join(sorted(fitting))}"
    )


def check_same_domain(
    dataset: str, domain: str, *, auxiliary: str, other: str, augment: str, features: Sequence[str]
) -> None:
    """Refuse an auxiliary dataset, augmentation or feature network of another domain than the dataset."""
    if other != domain:
        raise UsageError(
            f"auxiliary={auxiliary} holds {KINDS[other].noun}, and {dataset} holds {KINDS[domain].noun}; name a "
            f"dataset of {KINDS[domain].noun}, or disjoint"
        )
    if KINDS[domain].pictures:
        return
    held = f"{dataset} holds {KINDS[domain].noun}"
    if augment != "none":
        raise UsageError(f"augment={augment} moves pixels, and {held}; use augment=none")
    if features:
        raise UsageError(f"features={','.join(features)} looks at images, and {held}; leave it out")
