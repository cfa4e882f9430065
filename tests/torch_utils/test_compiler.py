"""Training without torch's compiler: it stays unloaded, and whoever asks for it gets the real one."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import torch
from privkit.torch_utils.compiler import compiler_unloaded

def trained():
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([weight], lr=0.1)
    optimizer.zero_grad()
    weight.square().sum().backward()
    optimizer.step()
    return weight.tolist()

with compiler_unloaded():
    inside = trained()
    assert not hasattr(sys.modules["torch._dynamo"], "__file__")
assert "torch._dynamo" not in sys.modules and "torch._inductor" not in sys.modules
with compiler_unloaded():
    torch._dynamo.is_compiling()
    assert sys.modules["torch._dynamo"].__file__
assert inside == trained()
own = torch.optim.AdamW.add_param_group.__wrapped__
assert own.__dynamo_disable is not own
"""


@pytest.mark.slow
def test_optimizers_compute_the_same_and_leave_nothing_behind() -> None:
    """In a process of its own, which has not loaded the compiler."""
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
