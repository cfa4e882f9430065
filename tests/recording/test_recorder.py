"""The recorder watches a user's loop without changing it, and writes what it saw."""

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import privkit
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.parts import Noise
from privkit.accountants.spec.sensitivity import Clamp
from privkit.errors import DataError, UsageError
from tests.small import generator

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "audit-a-recording.md").read_text("utf-8")
IMAGES = torch.rand(22, 1, 8, 8, generator=generator())


def loop(recorder: "privkit.Recorder | None", client: nn.Module) -> list[Tensor]:
    """Two epochs in batches of 8, of which the last is smaller; the weights afterwards."""
    server = nn.Linear(4, 2)
    with torch.no_grad():
        for weight in (*client.parameters(), *server.parameters()):
            weight.copy_(torch.linspace(-1, 1, weight.numel()).view_as(weight))
    optimizer = torch.optim.SGD([*client.parameters(), *server.parameters()], lr=0.1)
    for x in (*IMAGES.split(8), *IMAGES.split(8)):
        released = client(x)
        if recorder is not None:
            released = recorder(released, x=x, y=torch.arange(len(x)) % 2)
        optimizer.zero_grad()
        nn.functional.cross_entropy(server(released), torch.arange(len(x)) % 2).backward()
        optimizer.step()
    return [weight.detach().clone() for weight in (*client.parameters(), *server.parameters())]


def client() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4))


def test_the_loop_computes_what_it_did_before(tmp_path: Path) -> None:
    plain, called, own = loop(None, client()), privkit.Recorder(), client()
    assert all(map(torch.equal, plain, loop(called, client())))
    hooked = privkit.Recorder(own)
    assert all(map(torch.equal, plain, loop(None, own)))
    recordings = [
        recorder.save(tmp_path / str(number), name="plain") for number, recorder in enumerate((called, hooked))
    ]
    for first, second in zip(recordings[0].views, recordings[1].views, strict=True):
        assert torch.equal(first.smashed, second.smashed)
        assert first.cut_gradient is not None
        assert second.cut_gradient is not None
        assert torch.equal(first.cut_gradient, second.cut_gradient)
        assert first.cut_gradient.abs().sum() > 0
    assert torch.equal(recordings[0].truth.x, torch.cat([IMAGES[:16]] * 2))
    assert torch.equal(recordings[0].truth.x, recordings[1].truth.x)
    assert recordings[0].labels is not None
    assert recordings[1].labels is None
    assert "2 rounds of another size were left out" in recordings[0].description.notes[0]


def test_only_the_last_rounds_of_training_are_kept(tmp_path: Path) -> None:
    own = client()
    recorder = privkit.Recorder(own, rounds=1)
    loop(None, own)
    with torch.no_grad():
        own.eval()(IMAGES[:8])  # an evaluation
    recording = recorder.save(tmp_path / "r", name="plain", own=IMAGES, lower=own, accuracy=(0.5, 8), classes=2)
    assert len(recording.views) == 1
    assert torch.equal(recording.truth.x, IMAGES[8:16])
    assert (recording.description.measured.accuracy, recording.classes) == (0.5, 2)
    lower = recording.lower()
    assert lower is not None
    assert torch.equal(lower(IMAGES), own(IMAGES))


def test_a_mechanism_is_recorded(tmp_path: Path) -> None:
    recorder = privkit.Recorder()
    recorder(torch.rand(2, 4), x=IMAGES[:2])
    one = SplitMechanism(smashed=Clamp(low=0, high=1, dimensions=4), noise=Noise(smashed=2), lower_model="frozen")
    assert recorder.save(tmp_path / "r", name="noise", mechanism=one).mechanism == one


def test_what_cannot_be_recorded_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="rounds must be a whole number >= 1, got 0"):
        privkit.Recorder(rounds=0)
    recorder = privkit.Recorder()
    with pytest.raises(UsageError, match="nothing was recorded"):
        recorder.save(tmp_path / "r", name="plain")
    recorder(torch.rand(2, 4))
    with pytest.raises(UsageError, match="give x to the recorder, or image_shape"):
        recorder.save(tmp_path / "r", name="plain")
    with pytest.raises(UsageError, match="lower is traced on recorded images, and there are none"):
        recorder.save(tmp_path / "r", name="plain", own=IMAGES, lower=client())
    with pytest.raises(DataError, match=r"own\.images: images must lie in"):
        recorder.save(tmp_path / "r", name="plain", own=IMAGES + 2)


def test_the_script_of_the_page_is_short_and_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From an empty folder: own modules, images and defense, recorded, audited and gated in at most 25 lines."""
    name, code = re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, flags=re.DOTALL)[0]
    assert len(code.splitlines()) <= 25
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(code.replace('out="run"', 'out="run", budget="smoke", attack="white_box:epochs=1"'))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        exec(compile((tmp_path / name).read_text(), name, "exec"), {})
    assert (tmp_path / "run" / "report" / "index.html").exists()


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path) -> None:
    """In a kernel of its own; its last cell shows that more noise leaves less to recover."""
    nbformat, client = (pytest.importorskip(name, reason=f"needs {name}") for name in ("nbformat", "nbclient"))
    pytest.importorskip("ipykernel", reason="needs ipykernel")
    root = Path(__file__).parents[2]
    notebook = nbformat.read(root / "docs" / "examples" / "recording.ipynb", as_version=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(root))
        client.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    said = notebook.cells[-1].outputs[0]["text"]
    weak, strong = (float(value) for value in re.findall(r"SSIM (\S+)", said))
    assert weak > strong + 0.1
    assert "not known from the recording: epsilon" in said
