"""Draw random specifications (JSON) of every kind of `SplitMechanism`; each is determined by (seed, index)."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt
from typing import Any

import numpy as np
from campaign_secrets import Spec
from campaign_worlds import distance

ORDERS = (1.0001, 1.1, 1.5, 2.0, 2.5, 3.0, 7.3, 8.0, 16.0, 31.5, 64.0, 100.0, 1000.0)
PATCHES = (1, 2, 3, 4, 7, 16, 49, 64, 100, 196)


@dataclass(frozen=True, kw_only=True)
class Question:
    """One specification, and the values at which privkit's answers about it are checked."""

    spec: Spec
    delta: float
    epsilon: float
    orders: tuple[float, ...]
    deep: bool
    extra: str
    other: Spec
    """A second specification for the same ledger, with the same relation and unit."""


class Draw:
    """Random draws that make one question."""

    def __init__(self, seed: int, index: int) -> None:
        self.random = np.random.default_rng([seed, index])

    def one(self, **shares: float) -> str:
        """One of the names, drawn with probabilities proportional to `shares`."""
        total = sum(shares.values())
        return str(self.random.choice(list(shares), p=[share / total for share in shares.values()]))

    def log(self, low: float, high: float) -> float:
        """A log-uniform number in [low, high]."""
        return float(np.exp(self.random.uniform(np.log(low), np.log(high))))

    def whole(self, low: int, high: int) -> int:
        """A log-uniform integer from `low` to `high`, both included."""
        return min(high, int(self.log(low, high + 1)))

    def chance(self, p: float) -> bool:
        return bool(self.random.random() < p)

    def question(self) -> Question:
        special = self.chance(0.05)
        mechanism = self.secret() if special else self.usual()
        return Question(
            spec=mechanism,
            other=self.usual(mechanism["relation"], mechanism["unit"]),
            delta=self.delta(),
            epsilon=self.log(1e-3, 100),
            orders=tuple(sorted(float(order) for order in self.random.choice(ORDERS, 3, replace=False))),
            deep=self.chance(0.2),
            extra=self.one(none=0.57, monotone=0.34, ledger=0.06, calibrate=0.03),
        )

    def secret(self) -> Spec:
        """A specification with random allocation, shuffled epochs, a hidden mask or randomized response."""
        kind = self.one(allocation=1, shuffle=1, mask=1, response=1)
        spec: Spec = {
            "kind": "split_mechanism",
            "labels": None,
            "relation": "replace_one"
            if kind == "response" or self.chance({"mask": 0.4, "shuffle": 0.5}.get(kind, 0.05))
            else "add_or_remove_one",
            "unit": "record",
            "mixing": {"kind": "none"},
            "participation": {"kind": "every_round"},
            "rounds": 1 if self.chance(0.5) else self.whole(1, 30),
            "releases": 1,
            "random_masks": False,
            "lower_model": "frozen",
        }
        if kind == "response":
            spec["smashed"] = {"kind": "categories", "classes": self.whole(2, 50), "answers": self.whole(1, 10)}
            noise = min(1.0, self.log(1e-3, 1.2))
            return spec | {"noise": {"kind": "noise", "law": "randomized_response", "smashed": noise, "labels": None}}
        places = self.whole(1, 300)
        chosen = self.whole(1, places)
        if kind == "mask":
            spec["mixing"] = {"kind": "hidden_mask", "kept": chosen, "patches": places}
            clamp = {"kind": "clamp", "low": 0.0, "high": 1.0, "dimensions": self.dimensions(places)}
            ball = {"kind": "patch_ball", "radius": 1.0, "nonnegative": self.chance(0.3), "patches": places}
            spec["smashed"] = clamp if self.chance(0.5) else ball
        else:
            taking = {"kind": "random_allocation", "participations": chosen, "epoch_rounds": places}
            spec["participation"] = {"kind": "shuffled_epochs", "epoch_rounds": places} if kind == "shuffle" else taking
            spec |= {"rounds": spec["rounds"] * places, "smashed": self.smashed(None, spec["relation"], "l2")}
        whole = sqrt(distance(spec["smashed"], spec["relation"]) / (places if kind == "mask" else 1))
        return spec | {
            "noise": {"kind": "noise", "law": "gaussian", "smashed": whole / self.log(0.05, 6), "labels": None}
        }

    def usual(self, relation: str = "", unit: str = "") -> Spec:
        wild = self.chance(0.05)  # any combination of options, most of which privkit refuses
        relation = relation or self.one(replace_one=0.78, add_or_remove_one=0.22)
        mixing = self.mixing(wild or relation == "replace_one")
        unit = unit or self.one(record=0.65, client=0.35)
        law = self.one(gaussian=0.86, laplace=0.14)
        spec: Spec = {
            "kind": "split_mechanism",
            "smashed": self.smashed(mixing.get("patches"), relation, "l1" if law == "laplace" else "l2"),
            "labels": self.labels(relation, "l1" if law == "laplace" else "l2"),
            "relation": relation,
            "unit": unit,
            "mixing": mixing,
            "participation": self.participation(mixing, relation, wild),
            "rounds": self.rounds(),
            "releases": self.whole(1, 64) if unit == "client" and self.chance(0.6) else 1,
            "random_masks": self.chance(0.3),
            "lower_model": "frozen" if unit == "record" else self.one(frozen=0.4, trained=0.6),
        }
        if wild and self.chance(0.3):
            spec["lower_model"] = self.one(frozen=1, trained=1, averaged=1)
        if mixing.get("ratio", {}).get("kind") == "realized":
            spec["rounds"] = len(mixing["ratio"]["ratios"])
        spec["noise"] = self.noise(spec, law)
        if unit == "record" and relation == "replace_one" and self.chance(0.3):
            spec["lower_model"] = self.updates()
        return spec

    def rounds(self) -> int:
        if self.chance(0.35):
            return 1
        return self.whole(2, 2**52 if self.chance(0.04) else 10**6)

    def delta(self) -> float:
        which = self.one(usual=0.6, large=0.15, small=0.15, tiny=0.1)
        return {
            "usual": lambda: self.log(1e-12, 1e-2),
            "large": lambda: 0.5 if self.chance(0.1) else self.log(1e-2, 0.5),
            "small": lambda: self.log(1e-60, 1e-12),
            "tiny": lambda: self.log(1e-300, 1e-60),
        }[which]()

    def smashed(self, patches: int | None, relation: str, norm: str) -> Spec:
        kind = self.one(clamp=0.55, patch_ball=0.15, ball=0.1, known=0.1, one_hot=0.05, box_labels=0.05)
        if norm == "l1" and kind in ("patch_ball", "ball") and self.chance(0.8):
            kind = "clamp"
        size = self.log(1e-3, 1e3)
        if kind == "clamp":
            low, high = sorted((self.random.uniform(-1, 1) * size, self.random.uniform(-1, 1) * size))
            low = 0.0 if self.chance(0.4) else float(low)
            high = float(high) if high > low else low + size
            return {"kind": kind, "low": low, "high": high, "dimensions": self.dimensions(patches)}
        if kind in ("patch_ball", "ball"):
            ball = {"kind": kind, "radius": size, "nonnegative": self.chance(0.3)}
            return ball | ({"patches": patches or self.whole(1, 256)} if kind == "patch_ball" else {})
        if kind == "known":
            return {"kind": kind, "value": size, "relation": relation, "norm": norm}
        return {"kind": kind} | ({"classes": self.whole(1, 100)} if kind == "box_labels" else {})

    def dimensions(self, patches: int | None) -> int:
        if patches is None:
            return self.whole(1, 10**5)
        shape = self.one(fewer=0.3, whole=0.4, rest=0.3)
        if shape == "fewer":
            return self.whole(1, max(1, patches - 1))
        return patches * self.whole(1, 100) + (int(self.random.integers(0, patches)) if shape == "rest" else 0)

    def labels(self, relation: str, norm: str) -> Spec | None:
        kind = self.one(none=0.5, one_hot=0.3, box_labels=0.15, known=0.05)
        if kind == "known":
            return {"kind": kind, "value": self.log(0.1, 10), "relation": relation, "norm": norm}
        if kind == "box_labels":
            return {"kind": kind, "classes": self.whole(1, 20)}
        return None if kind == "none" else {"kind": kind}

    def mixing(self, mixed: bool) -> Spec:
        kind = self.one(none=0.3, mixup=0.3, cutmix=0.4) if mixed else "none"
        if kind == "none":
            return {"kind": kind}
        patches = int(self.random.choice(PATCHES)) if kind == "cutmix" else None
        fields = {"kind": kind, "ratio": self.ratio(patches), "colluding": self.chance(0.2)}
        return fields | ({} if patches is None else {"patches": patches})

    def ratio(self, patches: int | None) -> Spec:
        counted = 0.0 if patches is None else 0.18
        kind = self.one(
            equal=0.2, fixed=0.15, near=0.05, counts=counted, realized=0.1, dirichlet=0.2, dirichlet_counts=counted
        )
        group = self.whole(1, 12)
        if kind == "equal":
            return {"kind": "fixed", "ratios": [1 / group] * group}
        if kind == "fixed":
            return {"kind": "fixed", "ratios": self.shares(group)}
        if kind == "near":  # slightly more than a whole number of patches
            share = (int(self.random.integers(0, patches)) if patches else 1) / (patches or 2) + self.log(1e-12, 1e-8)
            return {"kind": "fixed", "ratios": [share, 1 - share]}
        if kind == "counts":
            assert patches is not None
            return {"kind": kind, "counts": self.random.multinomial(patches, self.shares(group)).tolist()}
        if kind == "realized":
            return {"kind": kind, "ratios": [self.shares(group) for _ in range(self.whole(1, 30))]}
        law = {"kind": kind, "concentration": self.log(0.05, 100), "clients": group}
        law |= {"published": self.chance(0.8)}
        return law | {"drawn": "once" if self.chance(0.3) else "every_round"}

    def shares(self, group: int) -> list[float]:
        ratios = self.random.dirichlet(np.full(group, self.log(0.3, 30)))
        return [float(value) for value in ratios / ratios.sum()]

    def participation(self, mixing: Spec, relation: str, wild: bool) -> Spec:
        kind = self.one(every_round=0.5, without_replacement=0.5)
        if (relation == "add_or_remove_one" or wild) and self.chance(0.7):
            return {"kind": "poisson", "rate": 1.0 if self.chance(0.05) else self.log(1e-4, 0.9)}
        if kind == "every_round" or (
            not wild and (relation != "replace_one" or mixing.get("ratio", {}).get("kind") == "realized")
        ):
            return {"kind": "every_round"}
        ratio = mixing.get("ratio", {})
        group = ratio.get("clients") or len(ratio.get("ratios") or ratio.get("counts") or []) or self.whole(1, 50)
        return {"kind": kind, "chosen": group, "clients": group if self.chance(0.05) else group + self.whole(1, 10**4)}

    def noise(self, spec: Spec, law: str) -> Spec:
        """Noise of such strength that the privacy loss of the whole run is usually neither tiny nor huge."""
        target = self.log(0.05, 12) if self.chance(0.88) else self.log(1e-6, 300)
        taking = spec["participation"]
        rate = taking.get("rate") or taking.get("chosen", 1) / taking.get("clients", 1)
        ratio, rounds = (
            spec["mixing"].get("ratio", {}),
            spec["rounds"] if spec["mixing"].get("ratio", {}).get("kind") != "realized" else 1,
        )
        share = max(ratio["ratios"]) if ratio.get("kind") == "fixed" else 0.5 if ratio else 1.0
        norm = 1 if law == "laplace" else 2
        each = target / sqrt(rounds) / sqrt(spec["releases"])
        each = max(each, min(each / rate, self.log(0.2, 4)))
        whole = distance(spec["smashed"], spec["relation"], norm) ** (1 / norm)
        label = 0.0 if spec["labels"] is None else distance(spec["labels"], spec["relation"], norm) ** (1 / norm)
        if law == "laplace":  # losses add up over coordinates as over rounds
            dimensions = spec["smashed"].get("dimensions", 1)
            whole /= sqrt(dimensions)
        return {
            "kind": "noise",
            "law": law,
            "smashed": whole * share / each,
            "labels": None if spec["labels"] is None else label * share / each * self.log(0.4, 4),
            "site": self.one(mixer=0.6, client=0.4),
        }

    def updates(self) -> Spec:
        steps = self.whole(1, 10**4)
        fields = {"kind": "private", "noise_multiplier": sqrt(steps) / self.log(0.05, 6), "steps": steps}
        if self.chance(0.5):
            return fields | {"chosen": None, "records": None}
        records = self.whole(2, 10**5)
        chosen = self.whole(1, records)
        return fields | {
            "noise_multiplier": max(0.3, fields["noise_multiplier"] * chosen / records),
            "chosen": chosen,
            "records": records,
        }


def features(spec: dict[str, Any]) -> str:
    """The kind of mixing and the special features of a specification, as one text for a row."""
    mixing, clip, taking = spec["mixing"], spec["smashed"], spec["participation"]
    ratio, kind = mixing.get("ratio", {}), spec["mixing"]["kind"]
    marks = {
        "laplace": spec["noise"]["law"] == "laplace",
        "D<N": kind == "cutmix" and clip.get("dimensions", inf) < mixing["patches"],
        "N∤D": kind == "cutmix"
        and clip.get("dimensions", 0) > mixing["patches"]
        and clip["dimensions"] % mixing["patches"] > 0,
        "colluding": mixing.get("colluding", False),
        "sampled": taking.get("rate", taking.get("chosen", 1) / taking.get("clients", 1)) < 1,
        "updates": isinstance(spec["lower_model"], dict),
        ratio.get("kind", ""): bool(ratio),
        "hidden": ratio.get("published") is False,
        "random masks": spec["random_masks"] and kind == "cutmix",
        "T=1": spec["rounds"] == 1,
    }
    return " ".join([kind, *(mark for mark, holds in marks.items() if holds)])
