"""How two configurations differ, in words."""

from privkit.run.differences import config_differences


def test_each_field_is_named_with_both_values() -> None:
    old = {"delta": 1e-5, "defenses": [{"name": "none"}, {"name": "mixup", "group": 2}]}
    new = {"delta": 1e-6, "defenses": [{"name": "none"}, {"name": "mixup", "group": 4}]}
    told = ["defenses.group: 2 there, 4 here", "delta: 1e-05 there, 1e-06 here"]
    assert list(config_differences(old, new)) == told


def test_files_of_a_recording_are_named_once() -> None:
    files = [{"name": "recorded", "sha256": {"lower.pt": digit * 64}} for digit in "ab"]
    told = list(config_differences(*({"dataset": one, "defenses": [one]} for one in files)))
    assert told == ["recording: lower.pt (aaaaaaaa there, bbbbbbbb here)"]
