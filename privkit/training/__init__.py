"""The training core: clients and server train a network that is cut in two, and exchange data at the cut."""

from privkit.training.checkpoint import Checkpoint
from privkit.training.clients import ClientForward, Clients
from privkit.training.evaluate import evaluate
from privkit.training.loop import Trained, release_count, train
from privkit.training.protocol import PROTOCOLS, SplitProtocol
from privkit.training.round import Round, split_round
from privkit.training.spec import OptimizerSpec, TrainingSpec
from privkit.training.stacked import Stacked

__all__ = [
    "PROTOCOLS",
    "Checkpoint",
    "ClientForward",
    "Clients",
    "OptimizerSpec",
    "Round",
    "SplitProtocol",
    "Stacked",
    "Trained",
    "TrainingSpec",
    "evaluate",
    "release_count",
    "split_round",
    "train",
]
