"""The recorder watches a user's loop without changing it, and writes what it saw."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import privkit
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.parts import Noise
from privkit.accountants.spec.sensitivity import Clamp
from privkit.errors import UsageError
from privkit.recording.read import Recording
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
    shown = repr(recordings[0])  # what a notebook shows after save: no record
    assert shown.startswith("Recording('plain', 4 rounds, 32 true and 0 own images, folder=")
    assert "\n" not in shown


def test_a_client_that_is_called_with_a_keyword_is_recorded_alike(tmp_path: Path) -> None:
    """The hook ended the user's loop with an IndexError."""

    class Client(nn.Linear):
        def forward(self, images: Tensor, scale: float = 1.0) -> Tensor:
            return super().forward(images.flatten(1)) * scale

    own = Client(64, 4)
    recorder = privkit.Recorder(own)
    own(scale=2.0, images=IMAGES[:8])
    assert torch.equal(recorder.save(tmp_path / "r", name="plain").truth.x, IMAGES[:8])


def test_only_the_last_rounds_of_training_are_kept(tmp_path: Path) -> None:
    own = client()
    recorder = privkit.Recorder(own, rounds=1)
    loop(None, own)
    with torch.no_grad():
        own.eval()(IMAGES[:8])  # an evaluation
    recording = recorder.save(tmp_path / "r", name="plain", own=IMAGES, lower=own, accuracy=(0.5, 8), classes=2)
    assert len(recording.views) == 1
    assert recording.description.watched == 6
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


class Trained(nn.Module):
    """Draws in training mode only, as dropout does."""

    def forward(self, images: Tensor) -> Tensor:
        released = images.flatten(1)
        return released + 0.5 * torch.randn_like(released) if self.training else released


def replayed(tmp_path: Path, own: nn.Module, **given: Any) -> Recording:
    """The recording of ten rounds of a client in training mode, whose weights stand still."""
    recorder = privkit.Recorder(own.train())
    for number in range(10):
        own(torch.rand(16, 1, 8, 8, generator=generator(number)))
    return recorder.save(tmp_path / "r", name="plain", own=IMAGES, lower=own, **given)


def normalized() -> nn.Module:
    """Batch normalization whose running means ten rounds do not bring to what a batch has."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())


@pytest.mark.parametrize(
    ("own", "mode", "most"),
    [
        (client(), "eval", 0.0),
        (nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64)), "train", 1e-5),
        (normalized(), "train", 1e-5),
        (nn.Sequential(nn.Flatten(), nn.Dropout(0.5)), "train", 0.05),
        (Trained(), "train", 0.05),
    ],
    ids=["plain", "normalized", "convolved", "dropout", "noise in training"],
)
@pytest.mark.parametrize("builder", ["", "tests.recording.test_recorder:never"])
def test_the_lower_segment_is_kept_in_the_mode_that_made_the_release(
    own: nn.Module, mode: str, most: float, builder: str, tmp_path: Path
) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        found = replayed(tmp_path, own, lower_builder=builder).description.replay
    assert found is not None
    assert found.mode == mode
    assert found.distance <= most


def test_a_segment_that_is_read_back_makes_what_was_released(tmp_path: Path) -> None:
    recording = replayed(tmp_path, normalized())
    lower = recording.lower()
    assert lower is not None
    assert torch.allclose(lower.eval()(recording.truth.x[-16:]), recording.views[-1].smashed, atol=1e-5)
    assert not torch.allclose(normalized().eval()(recording.truth.x[-16:]), recording.views[-1].smashed, atol=0.5)


def test_a_built_segment_stays_in_training_mode(tmp_path: Path) -> None:
    recording = replayed(tmp_path, normalized(), lower_builder="tests.recording.test_recorder:normalized")
    lower = recording.lower()
    assert lower is not None
    assert torch.allclose(lower.eval()(recording.truth.x[-16:]), recording.views[-1].smashed, atol=1e-5)


def test_a_round_without_images_and_a_named_defense_are_not_replayed(tmp_path: Path) -> None:
    assert replayed(tmp_path / "a", client(), defense="patch_shuffle").description.replay is None
    recorder = privkit.Recorder()
    recorder(torch.rand(2, 4), x=IMAGES[:2])
    recorder(torch.rand(2, 4))
    saved = recorder.save(
        tmp_path / "b", name="plain", own=IMAGES, lower=client(), lower_builder="tests.recording.test_recorder:client"
    )
    assert saved.description.replay is None


def test_arrays_are_recorded_like_tensors(tmp_path: Path) -> None:
    saved = []
    for kind in ("tensors", "arrays"):
        given: list[Any] = [torch.linspace(0, 1, 32).double().view(8, 4), IMAGES[:8], torch.arange(8) % 2, IMAGES[8:]]
        z, x, y, own = given if kind == "tensors" else [value.numpy() for value in given]
        recorder = privkit.Recorder()
        assert recorder(z, x=x, y=y) is z
        saved.append(recorder.save(tmp_path / kind, name="plain", own=own))
    one, other = saved
    assert torch.equal(one.views[0].smashed, other.views[0].smashed)
    assert torch.equal(one.truth.x, other.truth.x)
    assert torch.equal(one.own.x, other.own.x)
    with pytest.raises(UsageError, match="takes tensors and numeric arrays, got a str"):
        privkit.Recorder()("smashed")  # type: ignore[type-var]


def test_what_cannot_be_recorded_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="rounds must be a whole number >= 1, got 0"):
        privkit.Recorder(rounds=0)
    recorder = privkit.Recorder()
    with pytest.raises(UsageError, match="nothing was recorded"):
        recorder.save(tmp_path / "r", name="plain")
    recorder(torch.rand(2, 4))
    with pytest.raises(UsageError, match="give x to the recorder, or image_shape"):
        recorder.save(tmp_path / "r", name="plain")
    with pytest.raises(UsageError, match="lower is traced on the recorded x, and there is none"):
        recorder.save(tmp_path / "r", name="plain", own=IMAGES, lower=client())
    with pytest.raises(UsageError, match=r"own: images are float32 in \[0, 1\], got 2\."):
        recorder.save(tmp_path / "r", name="plain", own=IMAGES + 2)


@pytest.mark.slow
def test_a_segment_that_is_a_function_is_refused(tmp_path: Path) -> None:
    recorder = privkit.Recorder()
    loop(recorder, client())
    given: Any = torch.relu
    for side in ("lower", "upper"):
        with pytest.raises(UsageError, match=f"{side} is a torch.nn.Module, got a builtin_function_or_method; wrap it"):
            recorder.save(tmp_path / "recording", name="plain", **{side: given})


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


@pytest.mark.parametrize(("number", "attack"), [(2, "nearest_record"), (3, "black_box:epochs=5")])
@pytest.mark.usefixtures("no_report", "no_controls")
def test_the_scripts_of_texts_and_tables_run(
    number: int, attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they record is read better than any guess."""
    name, code = re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, flags=re.DOTALL)[number]
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        exec(compile(code, name, "exec"), {})
    (row,) = privkit.run_audit(recorded=Path(name).stem, attack=attack, budget="smoke", threads=1, out="run").rows
    measure = next(iter(row.recovered["unaligned"]))
    floors = [floor["unaligned"][measure].value for kind, floor in row.floors.items() if kind != "zero_steps"]
    assert row.recovered["unaligned"][measure].low > max(floors)


@pytest.mark.usefixtures("no_report", "no_controls")
def test_the_script_of_several_clients_and_passes_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, code = re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, flags=re.DOTALL)[1]
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        exec(compile(code, name, "exec"), {})
    attack = ["unmix:epochs=1,passes=3", "fora:epochs=1"]
    found = privkit.run_audit(recorded="several", attack=attack, budget="smoke:victims=200", threads=1, out="run").rows
    assert [(row.status, row.reason) for row in found] == [("done", "")] * 2


def test_the_lines_on_a_u_shape_run(tmp_path: Path) -> None:
    (lines,) = [block for block in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL) if "features" in block]
    recorder = privkit.Recorder()
    parts = {"client": client(), "server": nn.Linear(4, 4), "last": nn.Linear(4, 2)}
    exec(lines, {"nn": nn, "recorder": recorder, "x": IMAGES[:8], "y": torch.arange(8) % 2, **parts})
    assert recorder.save(tmp_path / "r", name="none").second[0].cut_gradient is not None


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path) -> None:
    """In a kernel of its own; its last cell shows that more noise leaves less to recover."""
    import nbclient
    import nbformat

    root = Path(__file__).parents[2]
    notebook = nbformat.read(root / "docs" / "examples" / "recording.ipynb", as_version=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(root))
        nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    said = notebook.cells[-1].outputs[0]["text"]
    weak, strong = (float(value) for value in re.findall(r"SSIM (\S+)", said))
    assert weak > strong + 0.1
    assert "not known from the recording: epsilon" in said
