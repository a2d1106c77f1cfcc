import json

from command_line import detloom_command


def test_presets_lists_all_presets():
    result = detloom_command("presets")
    assert result.exit_code == 0
    assert "efficientdet_d7x" in result.output
    rows = json.loads(detloom_command("presets", "--json").output)
    assert {"name", "input_size", "num_parameters", "coco_ap"} <= set(rows[0])
