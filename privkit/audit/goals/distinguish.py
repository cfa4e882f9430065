"""The goal "distinguish": an attack guesses which of two contents was sent for each canary, for a lower bound on ε."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf

import torch
from torch import Generator

from privkit.attacks.base import NotApplicable
from privkit.attacks.goals.distinguish import CanaryAttack, CanaryObservation, controls
from privkit.attacks.outputs import scores_of
from privkit.audit.claims import audit_one_run, claimed_family, limits_of
from privkit.audit.goals.canaries import gradients, smashed
from privkit.audit.goals.goal import AuditGoal, Cost, Timed
from privkit.audit.goals.trained import TrainedContext, must_get_gradients, must_send
from privkit.reports.schema import Check, Row
from privkit.settings.config import AuditConfig
from privkit.shared.certificate import Certificate
from privkit.shared.empirical_bound import EmpiricalBound
from privkit.shared.seeds import derive

_STANDS = "claim_stands"


def ask(context: TrainedContext) -> Row:
    """Run a canary attack: each attacked image or its counterpart is sent, at random, and the attack guesses which.

    The chosen image is sent as often as the run sends a record. The result has a lower bound on ε.
    """
    attack: CanaryAttack = context.cell.attack.spec
    seed = context.cell.seed
    must_send(context)
    if attack.on == "gradient":
        must_get_gradients(context)
    if context.certificate.relation == "add_or_remove_one":
        raise NotApplicable("the claim is about adding or removing a record, but these canaries replace one by another")
    checks = context.planted(lambda: controls(attack, seed))
    context.begin()
    draws = Generator().manual_seed(derive(seed, "canaries"))
    coins = torch.rand(len(context.seed_data.victims), generator=draws) < 0.5
    sending = (smashed if attack.on == "smashed" else gradients)(context, coins, draws)
    shape, claim = context.seed_data.splits.domain.shape, sending.claim
    seen = {name: getattr(sending, name) for name in ("views", "rows", "present", "absent")}
    observation = CanaryObservation(image_shape=shape, batch_size=context.round_size, **seen)
    scores = scores_of(attack, attack.run(observation, context.generator()))
    values, delta = scores.values.cpu().numpy(), context.config.delta if claim.delta is None else None
    family, alone = claimed_family(claim, sending.mechanism), not sending.shared
    audit = audit_one_run(values, coins.numpy(), claim, delta=delta, family=family, independent=alone)
    audit = remarked(audit, claim, sending.shared)
    refuted = (Check(name=_STANDS, passed=False, detail=claim.statement, decisive=True),) if sending.refuted else ()
    return context.row.model_copy(
        update={
            "certificate": claim if refuted else context.certificate,
            "answers": context.told(scores, coins),
            "limits": limits_of(claim, sending.mechanism),
            "empirical_bound": audit,
            "checks": (*checks, *bound_check(audit), *refuted),
        }
    )


def bound_check(audit: EmpiricalBound) -> tuple[Check, ...]:
    """Check that an attack's lower bound on ε does not exceed the claimed ε; empty if nothing is claimed.

    The check is undecided if the bound could not exceed the claim even for a perfect attack.
    """
    if audit.claimed == inf:
        return ()
    passed = None if audit.idle else not audit.refuted
    return (Check(name=_STANDS, passed=passed, detail=audit.statement, decisive=not audit.idle),)


def remarked(found: EmpiricalBound, claim: Certificate, shared: str) -> EmpiricalBound:
    """Add to the bound's statement whether canaries depend on each other, and whether the claim is about a client."""
    said = found.statement
    if shared and found.claimed < inf:
        said += f"; canaries are not independent trials ({shared}), so this is the weaker bound from one run"
    if claim.unit == "client":
        said += "; one record is exchanged, but the claim is about a whole client"
    return replace(found, statement=said)


class _Distinguish(AuditGoal):
    ask = staticmethod(ask)

    def cost(self, attack: CanaryAttack, timed: Timed, config: AuditConfig, sizes: Mapping[str, int]) -> Cost:
        """Estimate the cost: each canary is sent without a training step, in a third of the time of one step."""
        return Cost(steps=config.budget.epochs * sizes["victims"] / sizes["a_round"] / 3)


GOAL = _Distinguish()
