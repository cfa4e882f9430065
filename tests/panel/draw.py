"""Draws the parameter table of the panel, `rows.csv`: python tests/panel/draw.py. The table is committed."""

import csv
from pathlib import Path

import numpy as np

ROWS, SEED = 500, 12
HEADER = (
    "name,mechanism,sigma,noise_parameter,sigma_labels,sensitivity,dimensions,clip_low,clip_high,clip_norm,clip_patch,"
    "labels,classes,group,clients,sampling,participations,epoch_rounds,rate,rounds,releases,delta,relation,unit,"
    "lower_model,ratio,ratios,counts,concentration,drawn,patches,kept,noise_site,colluding"
)


class Row:
    """One row, cell by cell, from its number alone; about one in five is refused, as a user's might be."""

    def __init__(self, number: int) -> None:
        self.random = np.random.default_rng([SEED, number])
        self.cells: dict[str, object] = {"name": f"r{number}"}

    def of(self, *values: object) -> object:
        """One of some values."""
        return values[int(self.random.integers(len(values)))]

    def log(self, low: float, high: float) -> float:
        """A number with three digits, log-uniform."""
        return float(f"{np.exp(self.random.uniform(np.log(low), np.log(high))):.3g}")

    def chance(self, p: float) -> bool:
        return bool(self.random.random() < p)

    def drawn(self) -> dict[str, object]:
        mechanisms = ("gaussian", "laplace", "dp_sl", "dp_sl", "dp_mixsl", "dp_mixsl", "dp_cutmixsl", "dp_cutmixsl")
        kind = str(self.of(*mechanisms, "hidden_mask" if self.chance(0.5) else "randomized_response"))
        self.cells |= {"mechanism": kind, "delta": self.of("1e-5", "1e-5", "1e-3", "1e-8", "0.01")}
        self.cells["rounds"] = self.of(1, 1, 2, 10, 50, 400)
        if kind == "randomized_response":
            self.cells |= {"noise_parameter": self.log(0.05, 1), "classes": self.of(2, 3, 10)}
            return self.cells | ({"dimensions": 4} if self.chance(0.3) else {})
        self.cells["sigma"] = self.log(0.3, 8)
        self.clip(kind)
        if kind == "hidden_mask":
            return self.cells | {"kept": int(self.random.integers(1, 17)), "patches": 16}
        self.people(kind)
        self.learning()
        return self.cells | ({"sensitivity": 1, "clip_norm": 1} if self.chance(0.02) else {})

    def clip(self, kind: str) -> None:
        """Where the release lies, and the label."""
        ways = ("clamp", "clamp", "patch") if kind == "hidden_mask" else ("clamp", "clamp", "ball", "patch", "known")
        way = self.of(*ways)
        if way == "clamp":
            self.cells |= {"dimensions": self.of(1, 10, 64), "clip_high": self.of(0.15, 0.3, 1)}
            self.cells |= {"clip_low": -0.1} if self.chance(0.2) else {}
        elif way == "ball":
            self.cells["clip_norm"] = self.log(0.2, 2)
        elif way == "patch":
            self.cells |= {"clip_patch": self.log(0.05, 0.5), "patches": 16}
        elif kind in ("gaussian", "laplace") or self.chance(0.3):
            self.cells["sensitivity"] = self.log(0.2, 2)
        else:
            self.cells |= {"dimensions": 4, "clip_high": 0.5}
        if self.chance(0.05 if kind == "hidden_mask" else 0.35):
            label = self.of("one_hot", "box")
            self.cells |= {"labels": label, "sigma_labels": self.log(1, 20)} | (
                {"classes": 4} if label == "box" else {}
            )

    def people(self, kind: str) -> None:
        """Who is mixed, who takes part and who sees it."""
        group = int(self.random.integers(1, 5))
        mixes = kind in ("dp_mixsl", "dp_cutmixsl")
        if kind == "dp_cutmixsl":
            self.cells["patches"] = 16
        if mixes:
            counted = kind == "dp_cutmixsl" or self.chance(0.1)
            law = self.of("equal", "fixed", "dirichlet", *(("counts", "dirichlet_counts") if counted else ()))
            self.cells |= {"ratio": law}
            if law == "fixed":
                self.cells["ratios"], group = "0.7;0.3", 2
            elif law == "counts":
                self.cells["counts"], group = "4;12", 2
            else:
                self.cells["group"] = group
            if law in ("dirichlet", "dirichlet_counts"):
                self.cells |= {
                    "concentration": self.of(0.5, 2, 8),
                    "drawn": self.of("every_round", "every_round", "once"),
                }
        sampling = self.of("every_round", "without_replacement", "poisson", "random_allocation")
        if mixes and sampling in ("poisson", "random_allocation") and not self.chance(0.1):
            sampling = "without_replacement"
        self.cells["sampling"] = sampling
        if sampling == "without_replacement":
            self.cells |= {"group": group, "clients": group + int(self.log(1, 200))}
        elif sampling == "poisson":
            self.cells |= {"rate": self.log(0.005, 0.8), "relation": "add_or_remove_one"}
        elif sampling == "random_allocation":
            self.cells |= {
                "rounds": self.of(4, 8, 16),
                "participations": self.of(1, 2),
                "relation": "add_or_remove_one",
            }
            self.cells |= {"epoch_rounds": 4} if self.chance(0.5) else {}
        self.cells |= {"colluding": "yes"} if self.chance(0.15) else {}
        self.cells |= {"noise_site": "client"} if self.chance(0.3) else {}

    def learning(self) -> None:
        """The unit and what trains the lower model."""
        if self.chance(0.3):
            self.cells |= {"unit": "client", "releases": self.of(1, 4), "lower_model": self.of("frozen", "trained")}
        elif self.chance(0.08):
            self.cells |= {"lower_model": self.of("trained", "averaged")}


def main() -> None:
    with (Path(__file__).parent / "rows.csv").open("w", encoding="utf-8", newline="") as file:
        written = csv.DictWriter(file, HEADER.split(","), lineterminator="\n")
        written.writeheader()
        written.writerows(Row(number).drawn() for number in range(1, ROWS + 1))


if __name__ == "__main__":
    main()
