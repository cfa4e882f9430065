"""Random specifications of mixing, small enough for enumeration (`secret_seats.py`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.accountants.secret_seats import Spec


def draw(seed: int) -> tuple[Spec, float]:
    """A specification with at most three seats, three patches and five clients, and a δ."""
    random = np.random.default_rng([7, seed])

    def one(**shares: float) -> str:
        return str(random.choice(list(shares), p=np.array(list(shares.values())) / sum(shares.values())))

    law = one(gaussian=0.92, laplace=0.08)
    kind = one(none=0.1, mixup=0.3, cutmix=0.55, hidden_mask=0.05 if law == "gaussian" else 0)
    group, patches = int(random.integers(1 if kind == "none" else 2, 4)), int(random.integers(1, 4))
    if law == "laplace":
        patches, group = min(patches, 2), group if kind != "none" else min(group, 2)
    taking: Spec = {"kind": "every_round"}
    if kind != "hidden_mask" and random.random() < 0.75:
        most = 5 if group < 3 else 4
        taking = {"kind": "without_replacement", "chosen": group, "clients": int(random.integers(group, most + 1))}
    mixing: Spec = {"kind": "hidden_mask", "kept": int(random.integers(1, patches + 1)), "patches": patches}
    if kind != "hidden_mask":
        mixing = {"kind": kind, "colluding": bool(random.random() < 0.15)}
    rounds = 2 if random.random() < 0.1 else 1
    if kind in ("mixup", "cutmix"):
        mixing["ratio"] = _ratio(random, one, kind, group, patches, law, taking, rounds)
        mixing |= {"patches": patches} if kind == "cutmix" else {}
    dimensions = patches if kind in ("cutmix", "hidden_mask") else int(random.integers(1, 3))
    if kind == "none" and taking["kind"] != "every_round":
        dimensions = 1
    labeled = law == "gaussian" and kind in ("mixup", "cutmix") and dimensions < 3 and random.random() < 0.2
    shift = float(np.exp(random.uniform(np.log(0.5), np.log(5))))
    trained = kind != "hidden_mask" and random.random() < 0.1
    own = law == "gaussian" and kind in ("mixup", "cutmix") and mixing["ratio"].get("published", True)
    site = "client" if own and random.random() < 0.3 else "mixer"  # hidden ratios would hide the noise's variance, too
    spec = {
        "kind": "split_mechanism",
        "smashed": {"kind": "clamp", "low": -1.0, "high": 1.0, "dimensions": dimensions},
        "labels": {"kind": "one_hot"} if labeled else None,
        "noise": {
            "kind": "noise",
            "law": law,
            "smashed": 2 * dimensions**0.5 / shift,
            "labels": 2 / shift if labeled else None,
            "site": site,
        },
        "lower_model": "trained" if trained else "frozen",
        "relation": "add_or_remove_one" if kind == "hidden_mask" and random.random() < 0.7 else "replace_one",
        "unit": "client" if trained else "record",
        "mixing": mixing,
        "participation": taking,
        "rounds": rounds,
        "releases": 1,
        "random_masks": bool(kind == "cutmix" and random.random() < 0.3),
    }
    return spec, float(np.exp(random.uniform(np.log(1e-3), np.log(0.1))))


def _ratio(
    random: np.random.Generator, one: Any, kind: str, group: int, patches: int, law: str, taking: Spec, rounds: int
) -> Spec:
    """Ratios that whole patches can have, where there are patches."""
    cut, every, gaussian = kind == "cutmix", taking["kind"] == "every_round", law == "gaussian"
    which = one(
        even=0.2,
        uneven=0.3,
        counts=0.5 if cut else 0,
        dirichlet=0.25 if gaussian and not cut and (every or group == 2) else 0,
        dirichlet_counts=0.2 if gaussian and cut else 0,
        realized=0.1 if gaussian and every else 0,
    )
    counts = random.multinomial(patches if cut else 20, random.dirichlet(np.full(group, 1.5)))
    if which == "counts" or (cut and which in ("even", "uneven")):
        if which == "even" and patches % group == 0:
            counts = np.full(group, patches // group)
        if which != "counts":
            return {"kind": "fixed", "ratios": (counts / patches).tolist()}
        return {"kind": "counts", "counts": counts.tolist()}
    if which in ("even", "uneven"):
        return {"kind": "fixed", "ratios": [1 / group] * group if which == "even" else (counts / 20).tolist()}
    if which == "realized":
        rows = [random.multinomial(patches if cut else 20, np.full(group, 1 / group)) for _ in range(rounds)]
        return {"kind": "realized", "ratios": [(row / row.sum()).tolist() for row in rows]}
    concentration, published = float(np.exp(random.uniform(-0.5, 1.5))), bool(random.random() < 0.7)
    law_of = {"kind": which, "concentration": concentration, "clients": group}
    return law_of | {"published": published, "drawn": "every_round"}
