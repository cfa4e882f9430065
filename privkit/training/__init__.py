"""The training core: one client, one server, and the cut between them."""

from privkit.training.checkpoint import Checkpoint
from privkit.training.client import Client
from privkit.training.loop import Trained, TrainingSpec, evaluate, split_step, train

__all__ = ["Checkpoint", "Client", "Trained", "TrainingSpec", "evaluate", "split_step", "train"]
