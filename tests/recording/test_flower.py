"""A Flower app of split learning writes a recording, which is audited; on a grid that hands messages to the client."""

from collections.abc import Iterable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from privkit.audit.run import run_audit
from privkit.recording.read import read_recording

APP = Path(__file__).parents[2] / "docs" / "examples" / "flower" / "split_digits.py"


@pytest.mark.slow
@pytest.mark.needs("flower")
@pytest.mark.usefixtures("no_report", "no_controls")
def test_the_client_of_a_flower_app_records_its_releases(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from flwr import app as flwr
    from flwr.supercore.task_identity import TaskIdentity as task

    for number in ("run_id", "node_id", "task_id"):  # as Flower's own processes have them
        monkeypatch.setattr(task, f"_{number}", 1)
    spec = spec_from_file_location("split_digits", APP)
    assert spec is not None
    assert spec.loader is not None
    app = module_from_spec(spec)
    spec.loader.exec_module(app)
    configured = {"rounds": 60, "folder": str(tmp_path / "recording")}

    def context() -> Any:
        return flwr.Context(run_id=1, node_id=1, node_config={}, state=flwr.RecordDict(), run_config=configured)

    class Local:
        """One client, in this process."""

        kept = context()

        def get_node_ids(self) -> Iterable[int]:
            return [1]

        def send_and_receive(self, messages: Iterable[Any]) -> Iterable[Any]:
            return [app.client_app(message, self.kept) for message in messages]

    app.server_app(Local(), context())
    assert float(capsys.readouterr().out.rpartition(" ")[2]) < 1.5  # of about 2.3 at the start
    assert read_recording(tmp_path / "recording").labels is not None
    (row,) = run_audit(
        recorded=tmp_path / "recording", attack="black_box", budget="smoke", out=tmp_path / "run", threads=1
    ).rows
    assert (row.status, row.reason, row.threat_model) == ("done", "", "query")
    assert row.recovered["unaligned"]["mse"].value < row.floors["mid_grey"]["unaligned"]["mse"].value
