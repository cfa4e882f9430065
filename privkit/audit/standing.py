"""Whether a certificate is proven or declared: what a run measures before it repeats a claim."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from privkit.audit.seed_data import SeedData
from privkit.defenses.base import Defense, Receipt, ReleaseCount, is_own
from privkit.defenses.chain import stages_of
from privkit.defenses.charge import nothing
from privkit.defenses.measured import contradiction
from privkit.defenses.rules import check_chain
from privkit.reports.columns import DECLARATION
from privkit.reports.schema import Check
from privkit.settings.config import AuditConfig
from privkit.shared.certificate import Certificate
from privkit.torch_utils.seeded import seeded
from privkit.training import Clients, release_count
from privkit.training.private import run_certificate

_RECORDS = 4
_OF_TEXTS = (
    "the loss predicts the texts themselves, and its gradient goes up to the server without noise, whatever noise "
    "smashed data have"
)


def held_against_its_releases(certificate: Certificate, edge: Clients, records: Tensor) -> Certificate:
    """A run's certificate, after measurements of its stages and its lower segment could refute it.

    A claim that rests on a user's own stage is declared: the stage's receipt says what was done, and a measurement can
    only refute it. A claim for one record also needs a lower segment that keeps records apart.

    Args:
        certificate: computed from the receipts of this run.
        edge: the clients that made them, in evaluation mode.
        records: some records of the dataset, [N, ...].

    Returns:
        The certificate, a declared one, or one that proves nothing and says what was measured.
    """
    if certificate.kind == "nothing":
        return certificate
    stages, apart = stages_of(edge.defense), certificate.kind == "differential_privacy" and certificate.unit == "record"
    smashed = _smashed(edge, records[:_RECORDS])
    if apart and certificate.covers == "release" and (far := _reached(edge, records, smashed)):
        return nothing(
            f"the lower segment carries one record into {far} other rows of its batch, so that the noise of one row "
            "does not hide it; use layers that treat each record alone, such as layer normalization"
        )
    own = [stage for stage in dict.fromkeys((*stages, edge.defense)) if is_own(stage)]
    if not own:
        return certificate
    if found := _contradiction(stages, tuple(smashed.shape[1:]), tuple(records.shape[1:])):
        return replace(nothing(f"what was measured contradicts what is declared: {found}"), standing="declared")
    if all(stage.place == "server" for stage in own):  # what a server does to a release earns nothing and costs nothing
        return certificate
    names = " and ".join(stage.name for stage in own)
    return certificate.declared(
        f"what {names} did is declared by its receipt: privkit measured the change of a release, the noise and the "
        "orders, and nothing contradicted the receipt"
    )


def certified(
    config: AuditConfig, edge: Clients, seed_data: SeedData, receipt: Receipt, passes: int
) -> tuple[ReleaseCount, Certificate]:
    """How often a run released what belongs to one record, and its certificate, held against its own releases.

    Args:
        edge: the clients, in evaluation mode.
        receipt: of one of its rounds.
        passes: how often the attacked records cross after training.
    """
    often = release_count(
        edge,
        config.training,
        seed_data.shares,
        epochs=config.budget.epochs,
        recorded=seed_data.victims,
        passes=passes,
        others=config.attacked != "private",
    )
    often = replace(often, delta=config.delta)
    certificate = run_certificate(receipt.certificate(often), often, config.training)
    if texts_return(config, edge) and certificate.kind != "nothing":
        certificate = nothing(_OF_TEXTS)
    return often, held_against_its_releases(certificate, edge, seed_data.auxiliary.x)


def texts_return(config: AuditConfig, edge: Clients) -> bool:
    """Whether gradients of a loss that predicts the texts themselves went up to the server."""
    return edge.predicts == "texts" and edge.protocol.labels == "kept" and config.budget.epochs > 0


def _contradiction(stages: tuple[Defense, ...], shape: tuple[int, ...], record: tuple[int, ...]) -> str:
    """What a measurement refutes, or a rule that the chain breaks, however it was made."""
    try:
        if len(stages) > 1:
            check_chain(stages)
        return contradiction(stages, shape, record)
    except ValueError as reason:
        return str(reason)


def declaration_check(certificate: Certificate | None) -> tuple[Check, ...]:
    """The check whether measurements contradict a user's own stages; none if nothing is declared."""
    if certificate is None or certificate.standing == "proven":
        return ()
    refuted = certificate.kind == "nothing"
    detail = certificate.statement if refuted else certificate.assumptions[-1]
    return (Check(name=DECLARATION, passed=not refuted, detail=detail, decisive=True),)


@torch.no_grad()
def _smashed(edge: Clients, records: Tensor) -> Tensor:
    """What one client's lower segment makes of some records, the same for the same records."""
    training = edge.training
    with seeded(records.device, 0):
        made: Tensor = edge.eval().lowers.copy(0)(records)
    edge.train(training)
    return made


def _reached(edge: Clients, records: Tensor, before: Tensor) -> int:
    """Rows that change if another record is replaced."""
    if len(records) <= _RECORDS:
        return 0
    after = _smashed(edge, torch.cat([records[_RECORDS : _RECORDS + 1], records[1:_RECORDS]]))
    moved = (after - before).flatten(1)[1:].abs().amax(1)
    return int((moved > 1e-4 * before.abs().max()).sum())
