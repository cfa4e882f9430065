"""Builds the untrained clients and server from model, defense and protocol, and checks that these fit together."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Generator, nn

from privkit.accountants.spec.sensitivity import Clamp
from privkit.audit.contained import is_own_part
from privkit.defenses.base import Defense, stages_with
from privkit.defenses.chain import stages_of
from privkit.defenses.charge import Noised
from privkit.defenses.own_receipts import receipt_of_trial
from privkit.defenses.receipts import Nothing
from privkit.domains.domain import Domain
from privkit.errors import UsageError, one_line
from privkit.models import MODELS
from privkit.models.base import check_class_token, split_of
from privkit.models.imported import told_places
from privkit.models.tokens import first_block, has_block
from privkit.models.vertical import parties_of
from privkit.settings.config import AuditConfig
from privkit.shared.seeds import derive
from privkit.torch_utils.out_of_memory import ran_out
from privkit.torch_utils.seeded import seeded
from privkit.training import Clients, Stacked
from privkit.training.u_shape import u_shaped


def assemble(
    config: AuditConfig, defense: Defense, domain: Domain, classes: int, seed: int
) -> tuple[Clients, nn.Module, bool | None]:
    """Build the untrained clients and server; also return whether smashed tokens hide their positions (None if
    unknown)."""
    protocol = config.protocol.spec
    spec = config.model.spec
    model = split_of(spec, domain, classes, positions=defense.position_embedding, seed=derive(seed, "init"))
    # a copy, since this cell trains it, and a user's model may return the same modules at each call
    if is_own_part(spec):
        model = deepcopy(model)
    stages = stages_of(defense)
    if (shuffled := bool(stages_with(stages, "permutes"))) and model.class_token == "client":
        check_class_token(False, "leave the class token to the server")
    short = next((stage.name for stage in stages_with(stages, "shortens")), "")
    if short and model.class_token == "client":
        raise UsageError(f"{short} may drop or merge the class token that the client sends; leave it to the server")
    wanted = defense.frozen_block
    if wanted == "auto" and domain.name == "images" and has_block(model.upper):
        wanted = "first"
    block = first_block(model.upper) if wanted == "first" else None
    edge = Clients.build(
        model.lower, defense, domain, classes=classes, seed=derive(seed, "frozen block"), protocol=protocol, block=block
    )
    if (parties := parties_of(model.lower)) is not None and defense.storages:
        _check_parts(defense, len(parties.ranges))
    edge.held = config.held if defense.storages else ()
    if model.predicts == "texts":
        _check_texts(config, defense)
    edge.predicts = model.predicts
    places, edge.other_tokens = model.hides_places, model.other_tokens
    if shuffled and not defense.position_embedding:
        if config.model.name not in MODELS:  # a user's own model is tested, since its declaration may be wrong
            places, edge.other_tokens = told_places(model.lower, domain, config.training.batch_size)
            places = places or None
        edge.counts_orders = places is not None
    upper = edge.fitted(model.upper, domain, derive(seed, "adapter"))
    if short:
        _check_fewer_tokens(edge, upper, domain, short)
    if protocol.labels == "kept":
        upper = u_shaped(upper, _messages(edge, domain, edge.lowers.copies).flatten(0, 1), edge.lowers.copies)
    if protocol.stacked:
        upper = Stacked(upper, protocol.uppers)
        messages = _messages(edge, domain, protocol.clients)
        with seeded(torch.device("cpu"), 0):
            upper.eval().settle(messages.unflatten(0, (protocol.uppers, -1)).flatten(1, 2))
    return edge, upper, places


@torch.no_grad()
def _messages(edge: Clients, domain: Domain, clients: int) -> torch.Tensor:
    with seeded(torch.device("cpu"), 0):
        return edge.eval().infer(*empty_round(domain, clients, edge.defense.smallest_batch), Generator())


def empty_round(domain: Domain, clients: int, each: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Make one round of records that are all zero, [n, B, ...], and their labels 0, int64 [n, B]: B = `each` records
    for each of n = `clients`."""
    return domain.zeros(clients * each).unflatten(0, (clients, each)), torch.zeros(clients, each, dtype=torch.int64)


def _check_texts(config: AuditConfig, defense: Defense) -> None:
    protocol = config.protocol.spec
    if protocol.labels == "sent" and protocol.upper != "own":
        raise UsageError(
            "a model of the next token has the texts themselves as labels, and this protocol sends labels to the "
            "server: use --protocol u_shape, or labels=kept"
        )
    if moved := stages_with(stages_of(defense), "permutes", "shortens"):
        raise UsageError(
            f"{moved[0].name} moves or drops tokens, so a model of the next token cannot be trained; use task=label or "
            "another defense"
        )
    if (by := config.training.best_by) != "accuracy":
        raise UsageError(f"training: best_by={by} has no value for predicted texts; use best_by=accuracy")


def _check_parts(defense: Defense, parties: int) -> None:
    if len(defense.storages) != parties:
        raise UsageError(
            f"{defense.name} cuts the outputs of {parties} parties into {len(defense.storages)} parts; use "
            f"split_parts:parts={parties}, which gives each party's output a name"
        )
    if joint := [stage for stage in stages_of(defense) if _acts_on_all(stage)]:
        raise UsageError(
            f"{joint[0].name} acts on the outputs of all parties together, so no part belongs to one party; leave out "
            "split_parts, or that stage"
        )


def _acts_on_all(stage: Defense) -> bool:
    """Whether what a stage does to one party's output may depend on other parties' outputs, such as a norm of all."""
    receipt = receipt_of_trial(stage)
    clip = receipt.bound if isinstance(receipt, Nothing) else None
    if isinstance(receipt, Noised) and receipt.covers == "release":
        clip = receipt.clip
    filters = type(stage).lower_filter is not Defense.lower_filter
    return filters or bool(stages_with([stage], "maps")) or not (clip is None or isinstance(clip, Clamp))


@torch.no_grad()
def _check_fewer_tokens(edge: Clients, upper: nn.Module, domain: Domain, defense: str) -> None:
    """Raise `UsageError` if the server's segment fails for the smaller number of tokens that the defense sends."""
    records, labels = empty_round(domain, edge.lowers.copies, max(2, edge.defense.smallest_batch))
    training = edge.training, upper.training
    with seeded(torch.device("cpu"), 0):
        try:
            sent = edge.eval().release(records, labels, Generator().manual_seed(0)).release.smashed
        except ValueError as error:
            raise UsageError(str(error)) from None
        try:
            upper.eval()(sent.flatten(0, 1))
        except Exception as error:
            if ran_out(error):
                raise
            raise UsageError(
                f"{defense} sends fewer tokens, and this model's server needs all of them ({one_line(error)}); take a "
                "model whose upper segment is blocks of attention, such as vit_micro, t2t_vit or transformer_micro"
            ) from None
    edge.train(training[0])
    upper.train(training[1])
