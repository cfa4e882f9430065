"""Records the panel: what the accountants and whole audits answer at a tiny size, number by number.

    python tests/panel/record.py [--only audits|rows|grid]

Everything goes through the command line but `account`, the one place that names the Python interface.
"""

import argparse
import csv
import datetime
import importlib.metadata
import itertools
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
Record = dict[str, Any]
"""One line of the panel: `key`, `status`, `refusal`, and `values`, number by dotted path."""


def account(
    spec: Record, *, epsilon: float | None = None, delta: float | None = None, tight: bool = True
) -> float | None:
    """δ at ε or ε at δ of a specification as JSON; the only use of the Python interface."""
    from privkit.accountants import answer as accounting
    from privkit.accountants.spec.records import from_json

    mechanism = from_json(spec)
    if delta is not None:
        return accounting.epsilon(mechanism, delta, tight=tight).epsilon
    assert epsilon is not None
    return accounting.delta(mechanism, epsilon, tight=tight).delta


# --- audits ---------------------------------------------------------------------------------------------------------

TINY = shlex.split(
    "--dataset tiny_digits --threads 1 --budget smoke:private=120,auxiliary=120,test=80,victims=40,epochs=1,"
    "attack_epochs=2 --training batch_size=5"
)
"""For defenses and protocols: what releases and costs."""
LARGER = shlex.split(
    "--dataset tiny_digits --threads 1 --budget smoke:private=100,auxiliary=200,test=80,victims=50,epochs=1,"
    "attack_epochs=2 --training batch_size=25"
)
"""For attacks: batches large enough for their controls."""
BATCH_SHUFFLE = "batch_shuffle:frozen_block=false"
DEFENSES = shlex.split(
    f"adv {BATCH_SHUFFLE} blur:factor=2 cutsmashed dp_cutmixsl dp_mixsl dp_sl gaussian_noise grad_perturb "
    "laplace_noise mixup none nopeek patch_shuffle:frozen_block=false random_cutmix random_cutout shuffled_cutmix "
    "spectral_shuffle vanilla_cutmix vanilla_cutout"
)
ATTACKS = shlex.split(
    "adaptive:passes=2 black_box canaries fsha:epochs=1 gradient_matching jigsaw:kicks=10,epochs=2 "
    "jigsaw_white_box:kicks=10,epochs=1,pieces_epochs=2 label_leak mean_image member_inference:shadows=4 mid_grey "
    "sdar:epochs=1 unsplit:epochs=2 white_box:epochs=10"
)
PROTOCOLS = {name: "none" if name in ("sl", "standalone") else "random_cutmix" for name in
             ("cutmixsfl", "cutmixsl", "psl", "sl", "splitavg", "splitfed", "standalone")}  # fmt: skip
"""Protocol -> a defense that shows it."""


def _runs() -> dict[str, list[str]]:
    """Name -> arguments of `privkit audit`."""
    defended = list(itertools.chain.from_iterable(("--defense", name) for name in DEFENSES))
    runs = {"defenses": [*TINY, "--attack", "black_box", "--protocol", "psl:clients=4", *defended]}
    for attack in ATTACKS:
        runs[f"attack {attack.partition(':')[0]}"] = [*LARGER, "--attack", attack, "--defense", BATCH_SHUFFLE]
    for protocol, defense in PROTOCOLS.items():
        clients = protocol if protocol == "sl" else f"{protocol}:clients=4"
        uneven = ["--protocol", clients, "--partition", "dirichlet"]
        runs[f"protocol {protocol}"] = [*TINY, "--attack", "mid_grey", "--defense", defense, *uneven]
    for mode in ("disjoint", "training"):
        runs[f"auxiliary {mode}"] = [*LARGER, "--attack", "black_box", "--defense", "none", "--auxiliary", mode]
    return runs


RUNS = _runs()
WORDS = ("defense", "attack", "protocol", "auxiliary", "attacked", "seed")
"""What names a row; left-out parts of a row describe the machine or repeat the command."""
LEFT_OUT = (
    *WORDS,
    "schema_version",
    "cell",
    "files",
    "provenance",
    "sha256",
    "versions",
    "confidence",
    "higher_is_closer",
)


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every number and truth value below, by dotted path; named checks by their name, texts left out."""
    if isinstance(value, dict):
        parts: Iterable[tuple[str, Any]] = ((str(key), part) for key, part in value.items() if key not in LEFT_OUT)
    elif isinstance(value, list):
        parts = (((part["name"] if isinstance(part, dict) and "name" in part else str(at)), part)
                 for at, part in enumerate(value))  # fmt: skip
    else:
        if isinstance(value, bool | int | float):
            yield path, value
        return
    for name, part in parts:
        yield from flat(part, f"{path}.{name}" if path else name)


def privkit(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line of this checkout, on one thread."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}
    environment |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    command = [sys.executable, "-m", "privkit", *arguments]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", env=environment, cwd=ROOT)


def audit(run: str, arguments: list[str]) -> list[Record]:
    """The rows of one audit, or its refusal."""
    with tempfile.TemporaryDirectory() as folder:
        done = privkit("audit", *arguments, "--out", f"{folder}/run")
        results = Path(folder, "run", "results.jsonl")
        lines = results.read_text("utf-8").splitlines() if results.is_file() else []
    if done.returncode not in (0, 1) or not lines:
        return [{"key": f"{run}|exit {done.returncode}", "status": "refused", "refusal": done.stderr[-500:]}]
    found = []
    for row in map(json.loads, lines):
        key = "|".join([run, *(str(row[word]) for word in WORDS)])
        values = dict(flat(row))
        proof = {"certificate.kind": row["certificate"]["kind"]} if row["certificate"] else {}
        found.append({"key": key, "status": row["status"], "refusal": row["reason"], "values": proof | values})
    return found


def audits(names: Iterable[str] = tuple(RUNS)) -> Iterator[Record]:
    """Every row of the named runs."""
    for name in names:
        yield from audit(name, RUNS[name])


# --- rows of a parameter table -------------------------------------------------------------------------------------

QUICK_ROWS = 60
"""Rows of the first table; a pass over a table is vectorised, so that both tables keep their rows together."""


def rows(which: Iterable[str] = ("quick", "rest", "fast")) -> Iterator[Record]:
    """ε of `rows.csv` through `privkit epsilon`: tight in two tables, and by --fast in one."""
    with (HERE / "rows.csv").open(encoding="utf-8", newline="") as file:
        header, *cells = list(csv.reader(file))
    tables = {"quick": cells[:QUICK_ROWS], "rest": cells[QUICK_ROWS:], "fast": cells}
    for name in which:
        with tempfile.TemporaryDirectory() as folder:
            table = Path(folder, "table.csv")
            with table.open("w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows([header, *tables[name]])
            done = privkit("epsilon", str(table), "--json", *(["--fast"] if name == "fast" else []))
        assert done.returncode in (0, 3), done.stderr
        for row in json.loads(done.stdout):
            values = {key: row[key] for key in ("epsilon", "delta", "lower", "order") if row[key] is not None}
            key = f"{'fast' if name == 'fast' else 'tight'}|{row['name']}"
            yield {"key": key, "status": row["status"], "refusal": row["error"], "values": values}


# --- grid of specifications ----------------------------------------------------------------------------------------

DELTA = 1e-5
MIXINGS: dict[str, Record] = {
    "none": {"kind": "none"},
    "mixup": {"kind": "mixup", "ratio": {"kind": "fixed", "ratios": [0.5, 0.5]}},
    "cutmix": {"kind": "cutmix", "patches": 16, "ratio": {"kind": "counts", "counts": [4, 12]}},
    "mixup dirichlet": {"kind": "mixup", "ratio": {"kind": "dirichlet", "concentration": 2.0, "clients": 2}},
    "cutmix dirichlet": {
        "kind": "cutmix", "patches": 16, "ratio": {"kind": "dirichlet_counts", "concentration": 2.0, "clients": 2},
    },
}  # fmt: skip
SAMPLINGS: dict[str, Record] = {
    "every_round": {"kind": "every_round"},
    "2 of 20": {"kind": "without_replacement", "chosen": 2, "clients": 20},
    "poisson": {"kind": "poisson", "rate": 0.05},
}
ROUNDS = (1, 10, 100)
SIGMAS = (0.5, 3.0)
LAWS = ("gaussian", "laplace")
SITES = ("mixer", "client")
LABELS: dict[str, Record | None] = {"no labels": None, "labels": {"kind": "one_hot"}}
UPDATES: dict[str, Record | str] = {
    "frozen": "frozen",
    "updates": {"kind": "private", "noise_multiplier": 20.0, "steps": 50},
    "sampled updates": {"kind": "private", "noise_multiplier": 2.0, "steps": 50, "chosen": 20, "records": 1000},
}


def specifications() -> dict[str, Record]:
    """Name -> specification, for the combinations of the lists above; some are refused."""
    found: dict[str, Record] = {}
    for mixing, sampling, rounds, sigma, law, site, label, update in itertools.product(
        MIXINGS, SAMPLINGS, ROUNDS, SIGMAS, LAWS, SITES, LABELS, UPDATES
    ):
        if "dirichlet" in mixing and update == "sampled updates":
            continue  # seconds each
        key = f"{mixing}|{sampling}|T={rounds}|sigma={sigma}|{law}|{site}|{label}|{update}"
        found[key] = {
            "kind": "split_mechanism",
            "smashed": {"kind": "clamp", "low": 0.0, "high": 0.25, "dimensions": 16},
            "labels": LABELS[label],
            "noise": {
                "kind": "noise", "law": law, "smashed": sigma, "labels": 2 * sigma if LABELS[label] else None,
                "site": site,
            },
            "mixing": MIXINGS[mixing],
            "participation": SAMPLINGS[sampling],
            "relation": "add_or_remove_one" if sampling == "poisson" else "replace_one",
            "unit": "record",
            "lower_model": UPDATES[update],
            "rounds": rounds,
        }  # fmt: skip
    return found


def answered(key: str, spec: Record) -> Record:
    """ε at δ, and δ at half that ε in one digit, tight and fast; or why it is refused."""
    try:
        epsilon = account(spec, delta=DELTA)
        assert epsilon is not None
        at = float(f"{epsilon / 2:.1g}")
        values = {"epsilon": epsilon, "epsilon_fast": account(spec, delta=DELTA, tight=False), "at": at}
        values |= {"delta": account(spec, epsilon=at), "delta_fast": account(spec, epsilon=at, tight=False)}
    except ValueError as error:
        return {"key": key, "status": "refused", "refusal": str(error), "values": {}}
    return {"key": key, "status": "ok", "refusal": "", "values": values}


def grid(keys: Iterable[str] | None = None) -> Iterator[Record]:
    """Every specification, or those that are named."""
    specs = specifications()
    yield from (answered(key, specs[key]) for key in (specs if keys is None else keys))


# --- the files -----------------------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[], Iterator[Record]]] = {"audits": audits, "rows": rows, "grid": grid}


def machine() -> Record:
    """What rounding depends on."""
    import torch

    return {
        "processor": _processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in ("torch", "numpy", "scipy", "timm", "scikit-image")},
    }


def _processor() -> str:
    """The model of the CPU, where the system tells."""
    path = Path("/proc/cpuinfo")
    first = path.read_text().partition("\n\n")[0].splitlines() if path.is_file() else []
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first)}
    return " ".join(facts.get(name, "") for name in ("model name", "cpu family", "model", "stepping"))


def stored(part: str) -> dict[str, Record]:
    """What was recorded, by key."""
    lines = (HERE / f"{part}.jsonl").read_text("utf-8").splitlines()
    return {record["key"]: record for record in map(json.loads, lines)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=tuple(PARTS))
    only = parser.parse_args().only
    sys.path.insert(0, str(ROOT))
    for part in [only] if only else PARTS:
        with (HERE / f"{part}.jsonl").open("w", encoding="utf-8") as file:
            for record in PARTS[part]():
                print(record["key"], record["status"], flush=True)
                file.write(json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n")
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    found = {"commit": commit, "date": datetime.date.today().isoformat(), "machine": machine()}
    (HERE / "machine.json").write_text(json.dumps(found, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
