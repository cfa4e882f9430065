"""What a GPU lacks, by substitution: the GPU itself, bfloat16, memory. Another device in a resumed run: tests/run."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from privkit.attacks.inversion.black_box import _decoded_rows
from privkit.attacks.inversion.decoders import build_decoder
from privkit.audit.lead import _flags
from privkit.audit.run import run_audit
from privkit.cli.start import _told
from privkit.errors import UsageError
from privkit.reports.origins import differences
from privkit.reports.schema import Provenance
from privkit.torch_utils.out_of_memory import in_chunks
from privkit.torch_utils.precision import short_by_default
from tests.small import SMALL, generator

FULL = torch.OutOfMemoryError(
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.77 GiB of which 1.12 GiB is free."
)


def test_cuda_without_a_gpu_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="torch sees no CUDA device; use --device cpu or auto"):
        run_audit(device="cuda", out=tmp_path / "run", **SMALL)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("has", [False, True])
def test_a_card_without_bfloat16(has: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default such a card trains in float32; bfloat16 by name is refused before any work."""
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: has or including_emulation)
    assert short_by_default(torch.device("cuda")) == has
    monkeypatch.setattr("privkit.audit.run.pick_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
    if not has:
        with pytest.raises(
            UsageError, match="precision=bfloat16, but Tesla T4 computes no bfloat16; use precision=auto"
        ):
            run_audit(training="precision=bfloat16", out=tmp_path / "run", **SMALL)
        assert not (tmp_path / "run").exists()


def test_another_kind_of_gpu_is_a_change_that_no_flag_undoes() -> None:
    there, here, cpu = (
        Provenance(packages={"torch": "2.15"}, machine={"device": name}) for name in ("cuda, A100", "cuda, H200", "cpu")
    )
    assert differences(there, here, seed=0) == ["device (cuda, A100 there, cuda, H200 here)"]
    assert not _flags(there, here)
    assert _flags(there, cpu) == ["--device cuda"]


def test_memory_of_a_gpu_that_runs_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert _told(FULL) == 3
    said = capsys.readouterr().err
    assert "Tried to allocate 2.00 GiB; 1.12 GiB of 15.77 GiB are free" in said
    assert "lower batch_size in --training" in said
    assert "what was finished is kept" in said


@pytest.mark.parametrize("fits", [1, 3, 7, 20])
def test_chunks_are_halved_and_the_result_stays(fits: int) -> None:
    rows, sizes = torch.arange(40.0).view(20, 2), list[int]()

    def work(part: slice) -> Tensor:
        sizes.append(part.stop - part.start)
        if sizes[-1] > fits:
            raise FULL
        return rows[part] + 1

    assert torch.equal(in_chunks(work, 20, 20), rows + 1)
    assert sizes[0] == 20
    assert max(size for size in sizes if size <= fits) > fits / 2


def test_other_errors_and_a_single_row_too_large_are_raised() -> None:
    def fails(part: slice) -> Tensor:
        raise RuntimeError("shapes do not fit")

    def full(part: slice) -> Tensor:
        raise FULL

    with pytest.raises(RuntimeError, match="shapes do not fit"):
        in_chunks(fails, 4, 4)
    with pytest.raises(torch.OutOfMemoryError):
        in_chunks(full, 4, 4)


def test_a_decoder_draws_the_same_images_with_less_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.rand(6, 16, 12, generator=generator())
    decoder = build_decoder("mae", rows, (1, 8, 8), width=16, depth=1).eval()
    with torch.no_grad():
        whole, guess = _decoded_rows(decoder, rows), decoder.guess

        def small(part: Tensor) -> Tensor:
            if len(part) > 2:
                raise FULL
            return guess(part)

        monkeypatch.setattr(decoder, "guess", small)
        assert torch.allclose(_decoded_rows(decoder, rows), whole, atol=1e-6)
