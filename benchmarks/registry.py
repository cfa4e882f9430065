"""Measure the registry, a table of defenses at several strengths under the strongest known attacks.

    python benchmarks/run.py registry --dataset digits --seeds 0 1 2

An audit measures one defense at one or more strengths and the undefended model, with one seed and the default budget.
It appends one line for each setting and adversary to `reports/registry.csv`, and writes pictures of guesses to
`docs/registry`; the same command continues with missing settings. To repeat a line, run `privkit audit --defense
SETTING --attack ATTACK --dataset DATASET --seed SEED --threads 1`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import registry_pictures
from run import titled

from privkit.audit.report import entries_of
from privkit.audit.run import run_audit
from privkit.defenses import DEFENSES
from privkit.files.paths import file_name
from privkit.parts.registry import parse
from privkit.reports.registry import REGISTRY, Entry, read_registry, registry_csv
from privkit.reports.schema import Row
from privkit.run.progress import Progress
from privkit.run.records import read_rows
from privkit.settings.quick_attacks import AUTO, choose
from privkit.settings.resolve import resolve
from privkit.shared.threat_models import INCLUDES

STRENGTHS: dict[str, tuple[str, ...]] = {
    "adv": ("strength=10",),
    "batch_shuffle": ("keep=0.2", "keep=0.1"),
    "blur": ("factor=7", "factor=4"),
    "cutsmashed": ("payload=0.25", "payload=0.1"),
    "disco": ("ratio=0.75", "ratio=0.9"),
    "dp_cutmixsl": ("sigma=0.3", "sigma=1"),
    "dp_mixsl": ("sigma=0.3", "sigma=1"),
    "dp_sl": ("sigma=0.3", "sigma=1"),
    "gaussian_noise": ("sigma=1.5", "sigma=3"),
    "information_bottleneck": ("weight=1e-4", "weight=1e-2"),
    "laplace_noise": ("scale=1.5", "scale=3"),
    "masking": ("keep=0.1", "keep=0.05"),
    "mixup": ("group=4", "group=8"),
    "nopeek": ("weight=10",),
    "orthogonal_map": ("keep=0.25", "keep=0.03125", "keep=0.03125,secret=false"),
    "random_cutmix": ("group=4", "group=8"),
    "random_cutout": ("payload=0.25", "payload=0.1"),
    "shuffled_cutmix": ("group=4", "group=8"),
    "token_dropping": ("keep=0.25", "keep=0.1"),
    "token_merging": ("keep=0.25", "keep=0.1"),
    "vanilla_cutmix": ("group=4", "group=8"),
    "vanilla_cutout": ("payload=0.25", "payload=0.1"),
}
"""Defense -> its options in further settings, for defenses of adjustable strength."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Command-line flags of the benchmark `registry`.

    Attributes:
        defense: names of defenses; all defenses of privkit by default.
        dataset: dataset whose records are attacked; write TITLE=DATASET if the name contains a path, such as
            faces=folder:path=DIR.
        data_root: folder of the official datasets.
        seeds: seeds of the audits.
        strengths: whether to measure further strengths besides the defaults.
        attack: run only these attacks, also on settings that were measured before. By default, the attacks of `--attack
            auto` and every attack that was the strongest on some setting of the defense.
        out: folder of the runs.
        collect: finished run folders to read; then no audit is run.
    """

    defense: tuple[str, ...] = tuple(sorted(set(DEFENSES) - {"none"}))
    dataset: str = "digits"
    data_root: str | None = None
    seeds: tuple[int, ...] = (0,)
    strengths: bool = False
    attack: tuple[str, ...] = ()
    out: str = "privkit-runs/registry"
    collect: tuple[str, ...] = ()


def audits(options: Options, done: Sequence[Entry]) -> Iterator[tuple[dict[str, Any], str]]:
    """Settings of each missing audit, and a name for its folder."""
    title, dataset = titled(options.dataset)
    had = {(one.dataset, one.defense, one.seed) for one in done}
    for seed in options.seeds:
        for name in options.defense:
            written = [f"{name}:{one}" for one in STRENGTHS.get(name, ())] if options.strengths else [name]
            labels = [parse("defenses", one).label for one in written]
            if missing := [one for one in labels if options.attack or (title, one, seed) not in had]:
                automatic = choose(parse("defenses", name), "images").attacks
                won = [one.attack for one in done if one.defense.partition(":")[0] == name]
                # With `auto`, an attack also runs on the undefended model only if it failed on a defense.
                further = dict.fromkeys(attack for attack in won if attack not in automatic)
                attacks = options.attack or (AUTO, *further)
                given = {"defense": missing, "attack": list(attacks), "dataset": dataset, "seed": seed}
                root = {"data_root": options.data_root} if options.data_root else {}
                parts = (title, str(seed), name, str(len(missing)), *map(file_name, options.attack))
                yield {**given, **root, "threads": 1}, "-".join(parts)


def main(options: Options) -> None:
    """Run the missing audits, or read finished runs (`collect`), and rewrite the registry after each."""
    title, dataset = titled(options.dataset)
    for folder in options.collect:
        _add(Path(folder), read_rows(Path(folder)), title if title != dataset else None)
    for given, name in () if options.collect else audits(options, read_registry()):
        run = run_audit(resolve(given), out=Path(options.out) / name, progress=Progress())
        _add(run.folder, run.rows, title)


def _add(folder: Path, rows: Sequence[Row], title: str | None) -> None:
    """Put the results of a run into the registry (the table of measured defenses). `title` replaces the dataset's name.

    A result replaces an older line of the same setting, adversary and seed. The older line stays if its attack was not
    repeated in the run and is better: it identified more records, or as many with more similar guesses.
    """
    had = {(one.dataset, one.defense, one.threat_model, one.seed): one for one in read_registry()}
    tried, found = {row.attack for row in rows}, []
    for one in entries_of(rows):
        one = one.model_copy(update={"dataset": title or one.dataset})
        old = had.get(key := (one.dataset, one.defense, one.threat_model, one.seed))
        if old is None or old.attack in tried or _found(old) <= _found(one):
            had[key] = one
            found.append(one)
    REGISTRY.write_text(registry_csv(nested(had.values())), encoding="utf-8")
    registry_pictures.keep(folder, rows, found)
    for one in found:
        print(one.dataset, one.defense, one.threat_model, one.seed, one.attack, one.identified, flush=True)


def nested(entries: Iterable[Entry]) -> Iterator[Entry]:
    """The registry's lines. A line gets the attack of a weaker adversary if that attack identified more records."""
    entries = list(entries)
    lines = {(one.dataset, one.defense, one.seed, one.threat_model): one for one in entries}
    for one in entries:
        weaker = (lines.get((one.dataset, one.defense, one.seed, model)) for model in INCLUDES[one.threat_model])
        best = max([one, *filter(None, weaker)], key=lambda each: each.identified)
        yield best.model_copy(update={"threat_model": one.threat_model})


def _found(one: Entry) -> tuple[float, float]:
    return one.identified, one.likeness or 0.0
