"""Memory does not depend on the content of a file."""

import json
import subprocess
import sys
import textwrap
import zlib

import pytest
from labelled_data import encode_image, png_of_size

pytestmark = pytest.mark.reliability("hostile input", "ingest")

MAX_GROWTH_MB = 250  # growth of resident memory over a harmless run, for any data


HUGE = 200 * 2**20
# A file of 200 MB in one piece: its head, the repeated part, its tail; and whether an InputError is expected.
HUGE_FILES = {
    "coco": ("all.json", b'{"categories": [], "annotations": [], "images": [{"id": 1, "file_name": "', b"a", b'"}]}'),
    "cvat": (
        "annotations.xml",
        b'<annotations><image id="0" name="',
        b"a",
        b'" width="60" height="40"/></annotations>',
    ),
    "labelme": ("a.json", b'{"shapes": [], "imagePath": "', b"a", b'"}'),
    "open_images": ("boxes.csv", b"ImageID,LabelName,XMin,XMax,YMin,YMax\n", b"a", b",cat,0,1,0,1\n"),
    "yolo": ("labels/a.txt", b"0 0.5 0.5 0.1 0.1", b"1", b"\n"),
    "kitti": ("label_2/a.txt", b"Car 0 0 0 1 1 9 9 1 1 1 1 1 1 1", b"1", b"\n"),
    "voc": ("Annotations/a.xml", b"<annotation><filename>", b"a", b"</filename></annotation>"),
    "csv": ("a.csv", b"filename,class,xmin,ymin,xmax,ymax\n", b"a", b",cat,0,0,1,1\n"),
    "via": ("a.json", b'{"a": {"filename": "', b"a", b'", "regions": []}}'),
    "label_studio": ("a.json", b'[{"annotations": [{"result": []}], "data": {"image": "', b"a", b'"}}]'),
    "createml": ("a.json", b'[{"annotations": [], "image": "', b"a", b'"}]'),
    "supervisely": ("ann/a.json", b'{"objects": [{"classTitle": "', b"a", b'"}]}'),
}
CHILD = """
    import json, resource, sys
    from pathlib import Path
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions
    from detloom.components.example_gen.ingest import IngestFolders, ingest
    from detloom.components.example_gen.params import ExampleGenParams
    from detloom.schemas.errors import InputError

    def peak_mb():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    results = []
    for number, (folder, data_format, source) in enumerate(json.loads(sys.argv[1])):
        params = ExampleGenParams(
            format=data_format, splits={"train": source}, max_reject_fraction=1.0, decode_images=True)
        out = IngestFolders(f"{folder}_out", f"{folder}_out/rejects")
        try:
            ingest(folder, params, out, lambda: beam.Pipeline(
                options=PipelineOptions(["--direct_running_mode=in_memory"])))
            error = ""
        except InputError as caught:
            error = str(caught)
        results.append((data_format, peak_mb(), error))
    print(json.dumps(results))
"""


@pytest.mark.nightly  # fourteen files of 200 MB in a subprocess
def test_memory_is_bounded_for_any_file_content(tmp_path):
    bomb = png_of_size(20_000, 20_000, zlib.compress(bytes(20_001 * 20_000), 9))
    jobs = []
    for name, image in (("harmless", encode_image()), ("bomb", bomb)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jpg").write_bytes(encode_image(1))
        (tmp_path / name / "b.jpg").write_bytes(image)
        jobs.append((str(tmp_path / name), "images", ""))
    for data_format, (path, head, repeated, tail) in HUGE_FILES.items():
        target = tmp_path / data_format / path
        target.parent.mkdir(parents=True)
        for images in ("images", "image_2", "JPEGImages"):
            (tmp_path / data_format / images).mkdir()
            (tmp_path / data_format / images / "a.png").write_bytes(encode_image())
        with target.open("wb") as file:
            file.write(head)
            for _ in range(HUGE >> 20):
                file.write(repeated * (1 << 20))
            file.write(tail)
        source = {"coco": path, "cvat": path, "open_images": path, "yolo": "images"}.get(data_format, "")
        jobs.append((str(tmp_path / data_format), data_format, source))
    child = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CHILD), json.dumps(jobs)], capture_output=True, text=True, timeout=300
    )
    assert child.returncode == 0, child.stderr[-3000:]
    results = json.loads(child.stdout.splitlines()[-1])
    first = results[0][1]
    grown = {data_format: peak - first for data_format, peak, _ in results[1:]}
    assert max(grown.values()) < MAX_GROWTH_MB, (first, grown)
    refused = {data_format: error for data_format, _, error in results[1:]}
    assert set(refused) == {*HUGE_FILES, "images"}
    assert "all.json" in refused["coco"]
