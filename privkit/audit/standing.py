"""Measures whether a certificate is proven, declared or withdrawn, and whether a user's parts always behave alike."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Generator, Tensor, nn

from privkit.audit.contained import is_own_part
from privkit.audit.seed_data import SeedData
from privkit.defenses.base import Defense, Receipt, ReleaseCount, is_own
from privkit.defenses.chain import stages_of
from privkit.defenses.charge import nothing
from privkit.defenses.measured import contradiction
from privkit.defenses.own_receipts import NO_SWITCH, TrialRounds, keeps_its_noise, trial_of
from privkit.defenses.rules import check_chain
from privkit.domains.base import Batch
from privkit.errors import Misbehaved
from privkit.reports.columns import DECLARATION
from privkit.reports.schema import Check
from privkit.settings.config import AuditConfig
from privkit.shared.certificate import Certificate
from privkit.torch_utils.seeded import seeded
from privkit.training import Clients, release_count
from privkit.training.loop import learns
from privkit.training.private import run_certificate

_TOLD = 1e-5  # a change by more than this share of a number's range in the batch shows another record's influence
_OF_TEXTS = (
    "the loss predicts the texts themselves, and its gradient goes up to the server without noise, whatever noise "
    "smashed data have"
)
_TOO_FEW = (
    "there are too few different records to tell whether the lower segment keeps those of a batch of {batch} apart, "
    "which a claim for one record needs; give the adversary two of its own or more, or use batch_size=1"
)
_MEET = (
    "the lower segment carries records into {rows} other rows of a batch of {batch}, so that the noise of one row "
    "does not hide a record; use layers that treat each record alone, such as layer normalization"
)
_OF_NETWORK = {
    "differential_privacy": "the lower segment keeps records apart, as its author declares: privkit replaced records "
    "of a batch of {}, and no other row changed",
    "permutation_count": "tokens hide their places, as the author of the lower segment declares: privkit permuted the "
    "patches of records in a batch of {}, and tokens only moved with them",
}
_ROUNDED = 1e-4
"""Largest relative difference of a release that rounding explains."""
_LIKE_TWO_DRAWS = 10
"""Allowed multiple of the distance between two draws, for parts that do not draw from their generator alone."""
_HOLDS_OTHERS = (nn.Module, nn.Sequential, nn.ModuleList, nn.ModuleDict)
"""torch's modules that compute nothing by themselves."""
_CURE = "so attacks on what is sent after training say nothing about training; let it do the same in both"


def held_against_its_releases(
    certificate: Certificate, edge: Clients, records: Tensor, *, batch: int, own_network: bool = False
) -> Certificate:
    """Test a certificate by measurements of its defense stages and of the clients' lower segment on `records`.

    A claim that relies on a user's own stage is called declared, not proven, because measurements can refute what the
    stage says but not prove it. A claim that relies on a user's own network is called declared, too: noise protects one
    record only if the segment keeps records separate, and a shuffle hides an order only if tokens do not show their
    places.

    If a measurement refutes the claim, the returned certificate claims nothing and states the measurement.
    """
    if certificate.kind == "nothing":
        return certificate
    stages, apart = stages_of(edge.defense), rests_on_rows(certificate, edge.defense)
    if apart and (rows := rows_that_meet(edge, records, batch)) != 0:
        return nothing((_TOO_FEW if rows is None else _MEET).format(batch=batch, rows=rows))
    if own_network and (apart or certificate.kind == "permutation_count"):
        certificate = certificate.declared(_OF_NETWORK[certificate.kind].format(batch))
    own = [stage for stage in dict.fromkeys((*stages, edge.defense)) if is_own(stage)]
    if not own:
        return certificate
    if found := _contradiction(stages, _shape(edge, records), tuple(records.shape[1:]), batch):
        return replace(nothing(f"what was measured contradicts what is declared: {found}"), standing="declared")
    if all(stage.place == "server" for stage in own):  # a stage at the server neither strengthens nor weakens a claim
        return certificate
    names = " and ".join(stage.name for stage in own)
    return certificate.declared(
        f"what {names} did is declared by its receipt: privkit measured the change of a release, the noise and the "
        "orders, and nothing contradicted the receipt"
    )


def rests_on_rows(certificate: Certificate, defense: Defense) -> bool:
    """Whether a claim holds only if each record's smashed data depend on this record alone. This is so if noise on
    smashed data protects single records, but not for claims about a client or about labels, or if the noise is on the
    records themselves."""
    if (certificate.kind, certificate.unit, certificate.covers) != ("differential_privacy", "record", "release"):
        return False
    behind = [stage for stage in stages_of(defense) if stage.level == "smashed"]
    return any("noises" in (stage.effects or {"noises"}) for stage in behind)


def fewest_orders(receipts: Sequence[Receipt]) -> Receipt:
    """The receipt of the round whose message has the fewest different orders. If nothing was shuffled, the first
    receipt."""
    return max(receipts, key=lambda one: one.log10_alike)


def certified(
    config: AuditConfig, edge: Clients, seed_data: SeedData, receipt: Receipt, passes: int
) -> tuple[ReleaseCount, Certificate]:
    """Count how often a run released data of one record, and compute the run's certificate, which measurements can
    refute.

    `passes` is how often the attacked records are sent after training, and `receipt` describes one round.
    """
    must_send_alike(config, edge, seed_data.victims)
    records = seed_data.auxiliary.x
    must_draw_anew(stages_of(edge.defense), _shape(edge, records), tuple(records.shape[1:]))
    shares, victims, epochs = seed_data.shares, seed_data.victims, config.budget.epochs
    how: dict[str, Any] = {"recorded": victims, "passes": passes, "others": config.attacked != "private"}
    often = replace(release_count(edge, config.training, shares, epochs=epochs, **how), delta=config.delta)
    certificate = run_certificate(receipt.certificate(often), often, config.training)
    if texts_return(config, edge) and certificate.kind != "nothing":
        certificate = nothing(_OF_TEXTS)
    batch, own = config.training.batch_size, is_own_part(config.model.spec)
    return often, held_against_its_releases(certificate, edge, records, batch=batch, own_network=own)


def texts_return(config: AuditConfig, edge: Clients) -> bool:
    """Whether the server received gradients of a loss that has the private texts themselves as targets."""
    return edge.predicts == "texts" and edge.protocol.labels == "kept" and config.budget.epochs > 0


def _contradiction(stages: tuple[Defense, ...], shape: tuple[int, ...], record: tuple[int, ...], batch: int) -> str:
    try:
        if len(stages) > 1:
            check_chain(stages)
        return contradiction(stages, shape, record, batch=batch)
    except ValueError as reason:
        return str(reason)


def declaration_check(certificate: Certificate | None) -> tuple[Check, ...]:
    """Check whether measurements contradict what a user's own parts declare; empty if nothing is declared."""
    if certificate is None or certificate.standing == "proven":
        return ()
    refuted = certificate.kind == "nothing"
    detail = certificate.statement if refuted else certificate.assumptions[-1]
    return (Check(name=DECLARATION, passed=not refuted, detail=detail, decisive=True),)


@torch.no_grad()
def _shape(edge: Clients, records: Tensor) -> tuple[int, ...]:
    with seeded(records.device, 0):
        return tuple(edge.lowers.copy(0).eval()(records[:1]).shape[1:])


@torch.no_grad()
def rows_that_meet(edge: Clients, records: Tensor, batch: int) -> int | None:
    """Number of records in a batch of B whose smashed data change if other records of the batch are replaced, 0 to B.

    Two batches are combined once for each binary digit of the record numbers 0..B−1: the digit says from which batch a
    record comes. Any two numbers differ in some digit, so for each pair of records there is a combination in which one
    is kept and the other is replaced. Only the first client's segment is measured, in evaluation mode, for which claims
    are made. Each output number is compared on the scale of its range. The result is None if all records are equal.
    """
    if batch == 1:
        return 0
    rows = torch.arange(batch, device=records.device)
    if not len(records):
        return None
    one, other = records[rows % len(records)], records[(rows + 1) % len(records)]
    if torch.equal(one, other):
        return None
    lower = edge.lowers.copy(0).eval()
    made, again, others = (_made(lower, x) for x in (one, one, other))
    both = torch.cat([made, others])
    limit = _TOLD * (both.amax(0) - both.amin(0)) + 2 * (made - again).abs().amax(0)
    met = torch.zeros(batch, dtype=torch.bool, device=records.device)
    for digit in range((batch - 1).bit_length()):
        replaced = (rows >> digit) % 2 == 1
        mixed = _made(lower, rows_where(replaced, other, one))
        expected = rows_where(replaced, others, made)
        met |= ~((mixed - expected).abs() <= limit).flatten(1).all(1)  # a NaN is no small change
    return int(met.sum())


@torch.no_grad()
def remarks_on_network(config: AuditConfig, edge: Clients, records: Tensor) -> list[str]:
    """A remark if a user's own lower segment draws random numbers, or moves or mixes the records of a batch.

    Such a segment acts like a defense. The undefended model has it, too, so no comparison shows what it protects.
    """
    if not is_own_part(config.model.spec):
        return []
    batch, lower = config.training.batch_size, edge.lowers.copy(0).eval()
    one, other = (_made(lower, records[:batch], seed) for seed in (0, 1))
    drawn = not torch.equal(one, other) and bool(one.isfinite().all())
    does = ["draws random numbers"] if drawn else []
    if rows_that_meet(edge, records, batch):
        does.append("moves or mixes the records of a batch")
    why = "so does the undefended model, which no attack meets without it; make it a defense to measure its effect"
    return [f"the lower segment of {config.model.label} {' and '.join(does)}; {why}"] if does else []


def _made(lower: nn.Module, records: Tensor, seed: int = 0) -> Tensor:
    with seeded(records.device, seed):
        made: Tensor = lower(records)
    return made.double()


def rows_where(chosen: Tensor, there: Tensor, elsewhere: Tensor) -> Tensor:
    """The rows of `there` [N, ...] at which `chosen`, bool [N], is true, and the rows of `elsewhere` at the others."""
    return torch.where(chosen.view(-1, *[1] * (there.ndim - 1)).to(there.device), there, elsewhere)


def must_send_alike(config: AuditConfig, edge: Clients, records: Batch) -> None:
    """Raise `Misbehaved` if a user's own stage or network sends other data in training than afterwards.

    Attacks read data that are sent after training. The test sends the first round of `records` in both ways.
    """
    names = [stage.name for stage in stages_of(edge.defense) if is_own(stage)]
    if is_own_part(config.model.spec):
        names.append(config.model.name)
    if not names:
        return
    count = edge.lowers.copies * config.training.batch_size
    x, y = (side[:count].unflatten(0, (edge.lowers.copies, -1)) for side in (records.x, records.y))

    def sent(gradients: AbstractContextManager[object]) -> Tensor:
        with gradients, seeded(x.device, 0):
            draws = Generator(x.device).manual_seed(0)
            return edge.release(x.clone(), y.clone(), draws).arrived.smashed.detach().double()

    training, after, again = sent(torch.enable_grad()), sent(torch.no_grad()), sent(torch.no_grad())
    if not bool(after.isfinite().all()):
        return  # no attack reads such a release, and the result row says so
    apart = float("inf") if training.shape != after.shape else (training - after).norm().item()
    size = max(training.norm().item(), after.norm().item())
    if not apart <= _ROUNDED * size + _LIKE_TWO_DRAWS * (after - again).norm().item():
        raise Misbehaved(
            f"{' or '.join(names)} sends other data in training than afterwards: one round of the same records with "
            f"the same draws differs by {apart / max(size, 1e-30):.2g} of its size with and without gradients, {_CURE}"
        )
    trains = learns(edge) and not config.training.freeze_lower  # else it runs in evaluation mode
    if trains and is_own_part(config.model.spec):
        _must_keep_its_mode(config.model.name, edge.lowers.copy(0), x[0])


@torch.no_grad()
def _must_keep_its_mode(name: str, lower: nn.Module, records: Tensor) -> None:
    """Raise `Misbehaved` if a user's own lower network sends other data for a record in training mode.

    torch's own layers, such as dropout, differ on purpose, so they stay in evaluation mode here. Differences from
    random draws or from the other records of a batch (as in a hand-written batch normalization) are allowed.
    """

    def sent(x: Tensor, seed: int = 0) -> Tensor:
        with seeded(x.device, seed):
            return cast(Tensor, lower(x.clone())).double()

    lower.eval()
    after = sent(records)
    for part in lower.modules():
        part.training = not any(_computes(kind) for kind in type(part).__mro__)
    halves = records.chunk(2) if len(records) > 3 else (records,)
    training, again, others = sent(records), sent(records, 1), torch.cat([sent(half) for half in halves])
    apart, drawn, met = (float((training - other).norm()) for other in (after, again, others))
    if apart > _ROUNDED * after.norm() + _LIKE_TWO_DRAWS * max(drawn, met):
        raise Misbehaved(
            f"{name} sends other data in training than afterwards: its code reads the mode of the module "
            f"(self.training), and the same records differ by {apart / max(after.norm().item(), 1e-30):.2g} of their "
            f"size, {_CURE}"
        )


def _computes(kind: type) -> bool:
    """Whether a class is a layer of torch that computes something, unlike a container such as `Sequential`."""
    return issubclass(kind, nn.Module) and kind.__module__.startswith("torch.") and kind not in _HOLDS_OTHERS


@torch.no_grad()
def must_draw_anew(stages: tuple[Defense, ...], shape: tuple[int, ...], image: tuple[int, ...]) -> None:
    """Raise `Misbehaved` if a user's own defense stage adds the same noise in each round, e.g. from a fixed seed, or if
    its `noise_fields` do not switch its noise off.

    An adversary who has the code, or queries twice, can subtract noise of a fixed seed; privkit's attacks expect fresh
    noise. Controls and the accuracy without noise need a stage without its noise.
    `shape` is the shape of a record's smashed data, `image` the shape of an image.
    """
    for stage in stages:
        if not (is_own(stage) and stage.noise_fields):
            continue
        trial = trial_of((stage,), None, image) or trial_of((stage,), shape, image)
        if trial is None:
            continue  # nothing of it can be measured, and the run itself refuses it
        silent = TrialRounds((stage.noiseless(),), trial.shape, trial.lead[1], dtype=trial.dtype)
        one, other, without, again = (_released(each, seed) for each in (trial, silent) for seed in (0, 1))
        if torch.equal(one, other) and not torch.allclose(one, without):
            raise Misbehaved(
                f"{stage.name} adds the same noise in each round, whatever the draws: whoever has its code subtracts "
                "it, and attacks take it for fresh noise; draw from the generator that apply is given, and seed none"
            )
        if keeps_its_noise(stage, (one, other), (without, again)):
            raise Misbehaved(f"{stage.name}: {NO_SWITCH.format(fields=', '.join(stage.noise_fields))}")


def _released(trial: TrialRounds, seed: int) -> Tensor:
    return trial.play(trial.data(), trial.labels(), seed)[0].smashed


@torch.no_grad()
def made_by(stages: tuple[Defense, ...], image: tuple[int, ...]) -> list[Tensor | None]:
    """The releases of a user's own stages for fixed artificial records; None for a stage that does not accept them."""
    made: list[Tensor | None] = []
    for stage in filter(is_own, stages):
        with seeded(torch.device("cpu"), 0):
            trial = trial_of((stage,), None, image)
            made.append(None if trial is None else _released(trial, 0).nan_to_num())
    return made


def must_keep_no_state(stages: tuple[Defense, ...], image: tuple[int, ...], before: list[Tensor | None]) -> None:
    """Raise `Misbehaved` if a user's own stage now releases other data than `before` (from `made_by`).

    Attacks and measurements use the stage after training, so they would say nothing about the training.
    """
    for stage, first, after in zip(filter(is_own, stages), before, made_by(stages, image), strict=True):
        if first is None or after is None:
            continue
        same = first.shape == after.shape
        apart = float((first - after).norm() / after.norm().clamp_min(1e-30)) if same else float("inf")
        if not apart <= _ROUNDED:
            raise Misbehaved(
                f"{stage.name} changed while the model was trained: from the same records and draws, its release "
                f"now differs by {apart:.2g} of its size, so attacks and claims, which meet the stage afterwards, say "
                "nothing about training; let it keep no state between calls"
            )
