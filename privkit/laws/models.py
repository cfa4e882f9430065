"""Laws of a model: its logits, seed, cuts, evaluation of several clients at once, and claim about positions."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.parameter import is_lazy

from privkit.domains.domain import Domain
from privkit.domains.images.domain import Images
from privkit.errors import UsageError, WrongForm
from privkit.models import ModelSpec, SplitModel
from privkit.models.base import sent_by, split_of
from privkit.models.imported import hides_places
from privkit.training.losses import class_scores

_CLASSES = 10
_IMAGES = tuple(Images(shape=shape) for shape in ((1, 28, 28), (3, 32, 32), (1, 8, 8), (3, 224, 224)))
"""Shapes of images on which a model without a named dataset is tried, in this order."""
_CLOSE = 2e-5  # largest rounding difference between two ways to compute the same logits


def _records(domain: Domain, count: int) -> Tensor:
    return domain.random(count, Generator().manual_seed(0))


def built(spec: ModelSpec, domain: Domain, *, seed: int = 0, classes: int = _CLASSES, **options: Any) -> SplitModel:
    """Build both segments of a model with these `options`, for `classes` classes."""
    one: Any = replace(spec, **options) if options else spec  # type: ignore[type-var]
    return split_of(one, domain, classes, positions=True, seed=seed)


def fitting(spec: ModelSpec) -> Domain:
    """The first domain in `_IMAGES` that the model accepts. Raises `UsageError` if it accepts none; the error tells the
    reason for the shape with which the model came furthest, and `WrongForm` if no shape can help."""
    refused: list[tuple[int, str, Exception]] = []
    for domain in _IMAGES:
        passed = 0  # 1 if the model is built, 2 if the number of channels fits, 3 if there are smashed data
        try:
            split = built(spec, domain)
            passed = 1
            with torch.no_grad():
                smashed = sent_by(split.lower.eval(), _records(domain, 2))
                passed = 3
                split.upper.eval()(smashed)
        except WrongForm:
            raise
        except Exception as error:  # a user's network may raise anything
            passed += passed == 1 and re.search(r"to have \d+ channels", str(error)) is None
            refused.append((passed, "×".join(map(str, domain.shape)), error))
        else:
            return domain
    _, shape, reason = max(refused, key=lambda one: one[0])
    tried = ", ".join(one for _, one, _ in refused)
    raise UsageError(
        f"the model takes no images of {tried} (on {shape}: {reason}); name its data with --dataset"
    ) from reason


def gives_logits(spec: ModelSpec, domain: Domain, classes: int | None = None) -> str:
    """Check that smashed data are finite tokens, feature maps or vectors, and that logits have shape [N, `classes`];
    return the fault as a sentence, or "". `classes` is the number of classes of the data; None tries 10."""
    tried = classes or _CLASSES
    split = built(spec, domain, classes=tried)
    with torch.no_grad():
        smashed = sent_by(split.lower.eval(), _records(domain, 2))
        logits = class_scores(split.upper.eval()(smashed))
    if smashed.ndim not in (2, 3, 4) or len(smashed) != 2 or not bool(smashed.isfinite().all()):
        return f"the lower segment gives {list(smashed.shape)}; give finite [N, T, D], [N, C, H, W] or [N, D]"
    if not isinstance(logits, Tensor):
        return f"the upper segment returns a {type(logits).__name__}; return logits [N, classes] as one tensor"
    if logits.shape != (2, tried):
        hint = "" if classes else ", or name your data with --dataset"
        return f"the upper segment gives {list(logits.shape)} for 2 records of {tried} classes; give [2, {tried}]{hint}"
    return ""


_PRETRAINED = ("checkpoint", "path")  # fields that name a file or folder of weights, which no seed changes


def weights_follow_the_seed(spec: ModelSpec, domain: Domain) -> str:
    """Check that the seed determines the weights, unless a field of the model names a file of pretrained weights, and
    that torch's global generator stays unchanged; return the fault as a sentence, or ""."""
    state = torch.random.get_rng_state()
    first, again, other = (built(spec, domain, seed=seed) for seed in (0, 0, 1))
    if not torch.equal(torch.random.get_rng_state(), state):
        return "building it draws from torch's global generator; seed its weights inside torch.random.fork_rng()"
    for half in ("lower", "upper"):
        if any(map(is_lazy, getattr(first, half).parameters())):
            return (
                f"the {half} segment draws lazy weights at its first batch, whatever the seed; give layers their sizes"
            )
        a, b, c = (getattr(split, half).state_dict() for split in (first, again, other))
        if not all(torch.equal(a[key], b[key]) for key in a):
            return f"the same seed gives other weights of the {half} segment"
        if a and all(torch.equal(a[key], c[key]) for key in a) and not any(getattr(spec, of, "") for of in _PRETRAINED):
            return (
                f"another seed gives the same weights of the {half} segment; if these are pretrained, let a field "
                f"`{_PRETRAINED[0]}` name their file"
            )
    return ""


def a_cut_changes_no_function(spec: ModelSpec, domain: Domain, cuts: Sequence[str] = (), **options: Any) -> str:
    """Check that at each of `cuts` (empty: all) both segments together compute the same function, and that a later cut
    moves weights to the client; return the fault as a sentence, or "". `options` are the model's other options."""
    if not (is_dataclass(spec) and "cut" in {field.name for field in fields(spec)}):
        return ""
    cuts, x = cuts or getattr(spec, "cuts", ()), _records(domain, 2)
    logits, sizes = [], []
    for cut in cuts:
        split = built(spec, domain, cut=cut, **options)
        with torch.no_grad():
            logits.append(class_scores(split.upper.eval()(split.lower.eval()(x))))
        sizes.append([sum(weight.numel() for weight in half.parameters()) for half in (split.lower, split.upper)])
        owned = tuple(
            any(key.endswith("cls_token") for key in half.state_dict()) for half in (split.lower, split.upper)
        )
        if owned != {"none": (False, False), "client": (True, False), "server": (False, True)}[split.class_token]:
            return f"with cut={cut} it says class_token={split.class_token!r}, and the token is elsewhere"
    for cut, found in zip(cuts, logits, strict=True):
        if not torch.allclose(found, logits[0], atol=_CLOSE, rtol=0):
            return f"cut={cut} gives other logits than cut={cuts[0]}"
    below = [lower for lower, _ in sizes]
    if len({sum(size) for size in sizes}) > 1 or below != sorted(below) or not all(upper for _, upper in sizes):
        return f"weights below and above the cuts {', '.join(cuts)} are {sizes}; a later cut only moves weights down"
    return ""


def stacked(lowers: Sequence[nn.Module], x: Tensor) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Run n segments of equal architecture on x [n, B, ...] in one batched call. Returns the outputs [n, B, ...], and
    the segments' stacked weights and buffers, each [n, ...], by name."""
    weights, buffers = stack_module_state(list(lowers))
    frame = copy.deepcopy(lowers[0])  # not on "meta", which would part weights that layers share

    def run(w: dict[str, Tensor], b: dict[str, Tensor], batch: Tensor) -> Tensor:
        smashed: Tensor = functional_call(frame, (w, b), (batch,))
        return smashed

    return vmap(run, randomness="different")(weights, buffers, x), weights, buffers


def _clients_in_one_call_equal_each_alone(spec: ModelSpec, domain: Domain) -> str:
    lowers = [built(spec, domain, seed=seed).lower.eval() for seed in range(3)]
    x = torch.stack([domain.random(2, Generator().manual_seed(seed)) for seed in range(3)])
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            together, _, _ = stacked(lowers, x)
        except RuntimeError:  # training then runs them one after the other
            return ""
        alone = torch.stack([lower(batch) for lower, batch in zip(lowers, x, strict=True)])
    widest = max((torch.finfo(w.dtype).eps for w in lowers[0].parameters() if w.is_floating_point()), default=0.0)
    close = max(1e-4, 8 * widest)  # half precision rounds to 1e-3
    if torch.allclose(together, alone, atol=close, rtol=close):
        return ""
    return (
        "three clients in one call give other smashed data than one after the other; keep no state between records, "
        "and draw no random numbers in evaluation mode"
    )


def positions_are_as_said(spec: ModelSpec, domain: Domain) -> str:
    """Check the model's claim on whether tokens hide their positions; return the fault as a sentence, or ""."""
    for positions in (True, False):
        split = split_of(spec, domain, _CLASSES, positions=positions, seed=0)
        seen = hides_places(split.lower, domain)
        if split.hides_places is not None and seen not in (split.hides_places, None):
            return f"with positions={positions} it says hides_places={split.hides_places}, and the opposite is seen"
    return ""


LAWS: dict[str, Callable[[ModelSpec, Domain], str]] = {
    "a logit for each class": gives_logits,
    "weights follow the seed": weights_follow_the_seed,
    "a cut moves weights and changes no function": a_cut_changes_no_function,
    "clients in one call equal each alone": _clients_in_one_call_equal_each_alone,
    "positions are as it says": positions_are_as_said,
}
