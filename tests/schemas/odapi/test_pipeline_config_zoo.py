"""The files of the detection zoo, and damaged files."""

import random
import re
from pathlib import Path

from detloom.schemas.errors import InputError
from detloom.schemas.odapi.pipeline_config import format_pipeline_config, read_pipeline_config

CONFIGS = Path(__file__).parents[1] / "configs"
NOISE = (b"", b"{", b"}", b"[", b'"', b"12", b'"12"', b"-", b"9e99", b"\0", b"\xff", b"#", b":")


def test_every_file_of_the_zoo_round_trips(reference_dir, tmp_path):
    zoo = list((reference_dir / "zoo_configs").glob("*.config"))
    assert len(zoo) == 40
    for path in zoo:
        config = read_pipeline_config(path)
        (tmp_path / path.name).write_text(format_pipeline_config(config))
        assert read_pipeline_config(tmp_path / path.name) == config
        assert "detloom" not in (tmp_path / path.name).read_text()


def test_damaged_file_loads_or_is_refused_in_one_line(tmp_path):
    path, errors = tmp_path / "broken.config", []
    for seed in range(200):
        rng = random.Random(seed)
        data = bytearray((CONFIGS / rng.choice(("fpnlite.config", "efficientdet.config"))).read_bytes())
        start = rng.randrange(len(data))
        data[start : start + rng.choice((0, 1, 2, len(data)))] = rng.choice((*NOISE, rng.randbytes(9)))
        path.write_bytes(data)
        try:
            read_pipeline_config(path)
        except InputError as error:
            errors.append((str(error), data.count(b"\n") + 1))
    assert len(errors) > 100
    for error, num_lines in errors:
        match = re.match(rf"{re.escape(str(path))}:(\d+): [^\n]{{1,2000}}$", error)
        assert match, error
        assert int(match[1]) <= num_lines
