"""A recording whose author edits its description; apart from `made`, as what a part's module reads counts as its."""

import json
from pathlib import Path
from typing import Any

from privkit.recording.write import write_description


def redescribed(folder: Path, **changed: Any) -> Path:
    """The folder with some fields of its description changed, as its author may change them; None removes one."""
    fields = {**json.loads((folder / "recording.json").read_text()), **changed, "files": {}}
    write_description(folder, {name: value for name, value in fields.items() if value is not None})
    return folder
