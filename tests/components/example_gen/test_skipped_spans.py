import pytest

from detloom.components.example_gen.skipped_spans import describe_skipped_spans


@pytest.mark.parametrize(
    ("path", "filled", "empty", "skipped", "used"),
    [
        ("{SPAN}", ["1"], ["2"], ["2"], "1"),
        ("span-{SPAN:3}/labels", ["span-009/labels", "span-008/labels"], ["span-010/labels"], ["span-010"], "span-009"),
        ("{SPAN}/v{VERSION}", ["4/v1"], ["5/v1", "6"], ["5", "6"], "4"),
        ("{YYYY}/{MM}/{DD}", ["2026/11/30"], ["2026/12/01"], ["2026/12/01"], "2026/11/30"),
        ("{DD}-{MM}-{YYYY}", ["02-01-2026"], ["31-12-2025", "01-02-2026"], ["01-02-2026"], "02-01-2026"),
        ("{SPAN}", ["10"], ["9", "incoming", "11x"], [], ""),
        ("{SPAN}", [], ["1"], [], ""),  # the run fails and says so
        ("plain", ["plain"], [], [], ""),
    ],
)
def test_newer_folders_without_files_are_named_with_the_one_that_is_read(path, filled, empty, skipped, used, tmp_path):
    for name in (*filled, *empty):
        (tmp_path / name).mkdir(parents=True)
    for name in filled:
        (tmp_path / name / "labels.json").write_text("{}")
    sentence = describe_skipped_spans(f"{tmp_path}/{path}/")
    names, _, rest = sentence.partition(": newer")
    assert names == ", ".join(f"{tmp_path}/{name}" for name in skipped)
    assert (f"so {tmp_path}/{used} is the newest" in rest) == bool(used)
