"""Kill ingestion at many points and run it again: the same bytes, and no partial file under a final name."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

NUM_KILLS = 12  # spread over all file operations of one ingestion

# One process imports everything once; each ingestion runs in a fork of it. The child counts its file operations and
# kills itself with SIGKILL before the n-th, so that nothing is cleaned up.
DRIVER = """
    import json, os, signal, sys, traceback
    from pathlib import Path

    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    from detloom.components.example_gen import write_shard
    from detloom.components.example_gen.ingest import IngestFolders, ingest
    from detloom.components.example_gen.params import ExampleGenParams

    folder, work, num_kills = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    params = ExampleGenParams(
        format="voc", splits={"train": "train", "eval": "eval"}, shard_max_bytes=20_000, max_reject_fraction=1.0)

    def make_pipeline():
        return beam.Pipeline(options=PipelineOptions(["--direct_running_mode=in_memory"]))

    def run(out, kill_at=0, count_file=None):
        pid = os.fork()
        if pid:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        try:
            operations = count_operations(kill_at)
            ingest(folder, params, IngestFolders(str(out), str(out / "rejects")), make_pipeline)
            if count_file:
                count_file.write_text(str(operations[0]))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    def count_operations(kill_at):
        count = [0]

        def counted(operation):
            def act(*args, **kwargs):
                count[0] += 1
                if count[0] == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                return operation(*args, **kwargs)
            return act

        for owner, names in (
            (os, ("mkdir", "open", "replace", "rmdir", "scandir", "unlink")),
            (write_shard, ("frame_record",)),
        ):
            for name in names:
                setattr(owner, name, counted(getattr(owner, name)))
        return count

    def read(out):
        return {
            str(path.relative_to(out)): path.read_bytes()
            for path in out.rglob("*")
            if path.is_file() and ".incomplete" not in path.parts and path.name != ".ingest.lock"
        }

    assert run(work / "whole", count_file=work / "count") == 0
    expected, total = read(work / "whole"), int((work / "count").read_text())
    out, problems, codes, at = work / "killed", [], [], []
    for number in range(num_kills):
        at.append(1 + (number * (total - 1)) // (num_kills - 1))
        codes.append(run(out, kill_at=at[-1]))
        for name, data in read(out).items():
            if name not in expected:  # unfinished: hidden, with the final name and a random end
                path = Path(name)
                if not path.name.startswith(".") or str(path.with_name(path.stem[1:])) not in expected:
                    problems.append(f"killed at {at[-1]} of {total}: {name} is there")
            elif data != expected[name]:
                problems.append(f"killed at {at[-1]} of {total}: {name} is there, but not whole")
        if (out / "rejects/report.json").exists() and read(out) != expected:  # killed at its start
            problems.append(f"killed at {at[-1]} of {total}: the report is there, but not all that it tells of")
        if number % 3 == 0:  # the others start on the remains of several kills
            codes.append(run(out))
            if read(out) != expected or any(".incomplete" in path.parts for path in out.rglob("*")):
                problems.append(f"run again after {at[-1]} of {total}: another output")
    codes.append(run(out))
    if read(out) != expected:
        problems.append("run again at the end: another output")
    print(json.dumps({"total": total, "codes": codes, "problems": problems, "files": sorted(expected)}))
"""


@pytest.mark.slow  # 18 runs in forked processes
@pytest.mark.reliability("kill", "ingest")
def test_a_killed_ingestion_leaves_no_partial_file_and_its_rerun_gives_the_same_bytes(make_voc):
    lists = {"train": [f"i{number}" for number in range(12)], "eval": [f"i{number}" for number in range(12, 24)]}
    folder = make_voc(lists)
    for name in ("i0", "i5", "i20"):
        (folder / f"JPEGImages/{name}.jpg").write_bytes(b"damaged")
    driver = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(DRIVER), str(folder), str(folder.parent), str(NUM_KILLS)],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert driver.returncode == 0, driver.stderr[-4000:]
    killed = json.loads(driver.stdout.splitlines()[-1])
    assert killed["problems"] == []
    assert killed["codes"].count(-9) == NUM_KILLS
    assert set(killed["codes"]) == {-9, 0}
    assert killed["total"] > NUM_KILLS
    names = [Path(name).name for name in killed["files"]]
    assert sum(name.startswith("data_tfrecord-") for name in names) >= 4
    assert {"label_map.pbtxt", "rejects.jsonl", "report.json"} <= set(names)
