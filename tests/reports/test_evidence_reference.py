"""The page on evidence lists what an evidence file holds."""

import json
import re
from pathlib import Path

from privkit.reports.evidence_schema import Evidence

ROOT = Path(__file__).resolve().parents[2]


def test_the_reference_lists_every_field_of_this_version() -> None:
    text = (ROOT / "docs" / "how-to" / "evidence.md").read_text("utf-8")
    schema = Evidence.model_json_schema()
    assert f"version {schema['properties']['evidence_version']['const']}" in text
    listed = {name: re.findall(r"`(\w+)`", cells) for name, cells in re.findall(r"^\| `(\w+)` \| (.*?) \|", text, re.M)}
    shapes = {name: field for name, field in schema["properties"].items()}
    assert list(listed) == [*shapes, "files", "sha256"]
    for name, field in shapes.items():
        reference = re.search(r"#/\$defs/(\w+)", json.dumps(field))
        inner = list(schema["$defs"][reference[1]]["properties"]) if reference else []
        assert listed[name] == inner, name
