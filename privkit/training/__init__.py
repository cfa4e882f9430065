"""The training core: n clients, one server, and the cut between them."""

from privkit.training.checkpoint import Checkpoint
from privkit.training.edge import Edge, Sent
from privkit.training.loop import Trained, TrainingSpec, evaluate, exposure, train
from privkit.training.protocol import PROTOCOLS, Protocol
from privkit.training.round import Round, split_round
from privkit.training.stacked import Stacked

__all__ = [
    "PROTOCOLS",
    "Checkpoint",
    "Edge",
    "Protocol",
    "Round",
    "Sent",
    "Stacked",
    "Trained",
    "TrainingSpec",
    "evaluate",
    "exposure",
    "split_round",
    "train",
]
