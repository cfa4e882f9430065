"""Find out which options of dp_cutmixsl still train a useful model, and which ε they prove.

The only attack is the constant guess of the mean image.

    python benchmarks/run.py mixing_noise --out FOLDER

Data are the 8×8 digits with the budget `quick` and the defense's usual protocol. Each setting is a row of the table
results/mixing/trainable.csv.
"""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from cells import write_table

from privkit.audit.run import run_audit
from privkit.reports.tables import interval
from privkit.settings.config import AuditConfig
from privkit.settings.resolve import resolve

TABLE = Path(__file__).parent / "results" / "mixing" / "trainable.csv"
SETTINGS = (
    "random_cutmix",
    "dp_cutmixsl",
    "dp_cutmixsl:bound=none",
    "dp_cutmixsl:signed=true",
    "dp_cutmixsl:bound=1",
    "dp_cutmixsl:bound=1,signed=true",
    "dp_cutmixsl:bound=4,signed=true",
    "dp_cutmixsl:bound=1,signed=true,sigma=.016",
    "dp_cutmixsl:bound=1,signed=true,sigma=.25",
    "dp_cutmixsl:bound=1,signed=true,sigma=1",
    "dp_cutmixsl:bound=4,signed=true,sigma=4",
    "dp_cutmixsl:bound=1,signed=true,group=5",
    "dp_cutmixsl:bound=1,signed=true,sigma_labels=none",
    "dp_cutmixsl:bound=1,signed=true,site=mixer",
)
LONG = ("random_cutmix", "dp_cutmixsl", "dp_cutmixsl:bound=1,signed=true,sigma=.25")
BY_EPOCHS = {8: SETTINGS, 32: LONG}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Command-line flags of the benchmark `mixing_noise`.

    Attributes:
        out: folder of the runs, from which the same command resumes; None keeps no runs.
    """

    out: str | None = None


def config(settings: tuple[str, ...], epochs: int) -> AuditConfig:
    """An audit that trains behind each defense for these epochs, and whose only attack is the mean image."""
    return resolve(
        {
            "defense": list(settings),
            "attack": ["mean_image"],
            "dataset": "tiny_digits",
            "budget": f"quick:epochs={epochs}",
            "threads": torch.get_num_threads(),
        }
    )


def main(options: Options) -> None:
    """Run what is missing, and write the table."""
    made = []
    with TemporaryDirectory() as folder:
        for epochs, settings in BY_EPOCHS.items():
            for row in run_audit(config(settings, epochs), out=Path(options.out or folder) / f"{epochs}").rows:
                if row.accuracy is None:
                    raise SystemExit(f"{row.defense}: {row.reason}")
                proven = "–" if row.certificate is None else f"{row.certificate.epsilon:,.0f}"
                made.append([f"`{row.defense}`", str(epochs), interval(row.accuracy), proven])
                print(" ".join(made[-1]), flush=True)
    write_table(TABLE, ["defense", "epochs", "accuracy", "ε at δ = 1e-5"], made)
