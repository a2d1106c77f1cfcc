"""The examples of docs/components/ are complete pipelines: they compile for each backend and run on this machine."""

import io
import json
import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny_detector
from message_server import serve_messages
from ml_metadata.proto import metadata_store_pb2
from PIL import Image
from tfx import v1 as tfx
from tfx.dsl.components.base.base_component import BaseComponent
from tfx.orchestration.metadata import Metadata

import detloom
import detloom.components
from detloom.schemas.contracts.detections import ASSET_CONFIG, ASSET_CONTRACT, OUTPUT_NAMES
from detloom.schemas.contracts.label_map import LabelMap, write_label_map
from detloom.schemas.model.export_and_quantization import Export
from detloom.schemas.reading.typed_dict import to_canonical_json
from detloom.schemas.run_file import Kubeflow, Vertex, Volume
from detloom.schemas.run_file.read_config import read_config
from detloom.trainer_module.detectors.families import family_of
from detloom.trainer_module.export.serving_contract import format_contract

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests/conformance"))  # tests are not a package
from conformance_driver.execute import run_job  # noqa: E402
from conformance_driver.job import read_job  # noqa: E402
from conformance_driver.run import Machine  # noqa: E402
from conformance_driver.runner import SubprocessRunner  # noqa: E402

PAGES = sorted(page for page in (ROOT / "docs/components").glob("*.md") if page.name != "README.md")
CODE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
OBJECT_PX = 14
DETECTOR = """
name: colours
workspace: workspace
data: {path: photos, format: coco, split_by_ratio: {}}
model:
  image_resizer: {height: 64, width: 64}
  feature_extractor: {depth_multiplier: 0.1, neck: {max_level: 5, additional_layer_depth: 16}}
  anchor_generator: {max_level: 5, aspect_ratios: [1.0], scales_per_octave: 1}
  box_predictor: {depth: 16, num_layers_before_predictor: 1}
train: {batch_size: 4, num_steps: 2, steps_per_call: 2, augmentations: []}
eval: {batch_size: 4, evaluate_every: 2}
"""


def code_of(page):
    (code,) = CODE.findall(page.read_text("utf-8"))
    return code


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory):
    """The folder of a Model artifact, with a SavedModel that detects the red and the green area of an image."""
    folder = tmp_path_factory.mktemp("pages") / "model"
    assets = tiny_detector.write_tiny_detector(folder / "Format-Serving") / "assets"
    config = read_config("ssd_mobilenet_v2_fpnlite_320x320")
    contract = format_contract(family_of(config.model).preprocessing, OUTPUT_NAMES, max_detections=2, settings=Export())
    (assets / ASSET_CONFIG).write_text(to_canonical_json(config))
    (assets / ASSET_CONTRACT).write_text(json.dumps(contract))
    return folder


@pytest.fixture
def work_dir(tmp_path, monkeypatch, make_example, write_records, model_dir):
    """Write the files that the pages name into the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").symlink_to(model_dir)
    (tmp_path / "detector.yaml").write_text(DETECTOR)
    write_label_map(tmp_path / "label_map.pbtxt", LabelMap.from_names(["red", "green"]))
    write_photos(tmp_path / "photos")
    boxes = [(0.1, 0.1, 0.4, 0.4), (0.5, 0.5, 0.9, 0.9)]
    for split, heights in (("train", range(64, 68)), ("eval", range(68, 70))):
        examples = [make_example(boxes, [1, 2], (height, 64), f"{split}_{height}") for height in heights]
        write_records(tmp_path / "tfrecords" / f"{split}.tfrecord", examples)
    return tmp_path


def write_photos(folder):
    """Write a COCO data set of noise images with a red and a green square."""
    random = np.random.default_rng(0)
    (folder / "images").mkdir(parents=True)
    (folder / "annotations").mkdir()
    images, annotations = [], []
    for image_id in range(1, 13):
        pixels = random.integers(0, 90, (60, 80, 3)).astype(np.uint8)
        for class_id, color in ((1, (255, 0, 60)), (2, (0, 255, 60))):
            top, left = (int(random.integers(0, 40)), int(random.integers(0, 20)) + 40 * (class_id - 1))
            pixels[top : top + OBJECT_PX, left : left + OBJECT_PX] = color
            box = {"bbox": [left, top, OBJECT_PX, OBJECT_PX], "area": OBJECT_PX**2, "iscrowd": 0}
            annotations.append({"id": len(annotations) + 1, "image_id": image_id, "category_id": class_id, **box})
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "PNG")
        (folder / "images" / f"{image_id}.png").write_bytes(buffer.getvalue())
        images.append({"id": image_id, "file_name": f"{image_id}.png", "height": 60, "width": 80})
    categories = [{"id": 1, "name": "red"}, {"id": 2, "name": "green"}]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "annotations" / "instances.json").write_text(json.dumps(content))


def build_pipeline(page, code=None):
    names = {"__name__": page.stem}
    exec(compile(code or code_of(page), str(page), "exec"), names)
    return tfx.dsl.Pipeline(
        pipeline_name=page.stem.replace("_", "-"),
        pipeline_root=os.path.abspath("artifacts"),
        components=names["components"],
        enable_cache=True,
        metadata_connection_config=tfx.orchestration.metadata.sqlite_metadata_connection_config("metadata.sqlite"),
        beam_pipeline_args=["--direct_running_mode=in_memory"],
    )


def outputs_of(metadata):
    """Return the folders of all artifacts by type name."""
    with Metadata(metadata) as handler:
        types = {each.id: each.name for each in handler.store.get_artifact_types()}
        artifacts = handler.store.get_artifacts()
    live = [each for each in artifacts if each.state == metadata_store_pb2.Artifact.LIVE]
    return {types[each.type_id]: each for each in live}


def run(page):
    pipeline = build_pipeline(page)
    tfx.orchestration.LocalDagRunner().run(pipeline)
    return outputs_of(pipeline.metadata_connection_config)


def files_of(artifact):
    return {path.name for path in Path(artifact.uri).iterdir()}


def test_each_component_has_a_page_with_an_example():
    texts = [page.read_text("utf-8") for page in (*PAGES, ROOT / "docs/notebooks.md")]
    used = "".join(block for text in texts for block in FENCED.findall(text))
    assert [name for name in detloom.components.__all__ if name not in used] == []
    index = (ROOT / "docs/components/README.md").read_text("utf-8")
    assert [page.name for page in PAGES if f"({page.name})" not in index] == []


def backend_of(place):
    if place == "kubeflow":
        volume = Volume(claim="work", mount_path=os.getcwd())
        return Kubeflow(image="registry.example.org/detloom:1.0", volumes=(volume,))
    image, root = "us-docker.pkg.dev/my-project/ml/detloom:1.0", "gs://bucket/root"
    return Vertex(project="my-project", region="us-central1", image=image, pipeline_root=root)


class BucketsAsFolders(SubprocessRunner):
    """TFX's own driver of ExampleGens reads buckets through TensorFlow's client; here it gets the mounted folders."""

    def run(self, command, env, mounts):
        if command[2] == "tfx.orchestration.kubeflow.v2.file_based_example_gen.driver":
            command = [argument.replace("gs://", "/gcs/") for argument in command]
        return super().run(command, env, mounts)


def compile_page(page, place):
    """Compile the example of a page with the paths that its reader would write for a cluster."""
    folder = {"kubeflow": os.getcwd(), "vertex": "/gcs/bucket"}[place]
    code = re.sub(r'"(tfrecords|photos|records|serving)"', rf'"{folder}/\1"', code_of(page))
    code = code.replace('source_uri="model"', 'source_uri="gs://bucket/model"')
    if place == "kubeflow":
        code = re.sub(r"baseline = tfx.dsl.Resolver\(.*?^\).with_id", PRODUCTION_MODEL, code, flags=re.S | re.M)
    return read_job(detloom.compile_pipeline(build_pipeline(page, code), backend_of(place)), place)


PRODUCTION_MODEL = """from detloom.components import ProductionModel
baseline = ProductionModel(production="serving", candidate=model.outputs["result"]).with_id"""
MOST_AT_NIGHT = [
    pytest.param(page, marks=pytest.mark.slow if page.stem == "model_card" else pytest.mark.nightly, id=page.stem)
    for page in PAGES
]
EVERYWHERE = pytest.mark.parametrize("place", ["kubeflow", "vertex"])


@EVERYWHERE
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_example_compiles_for_kubeflow_and_vertex(page, place, work_dir):
    job = compile_page(page, place)
    nodes = [node for node in build_pipeline(page).components if isinstance(node, BaseComponent)]
    assert {f"{node.id}_executor" for node in nodes} <= set(job.executors)


@EVERYWHERE
@pytest.mark.parametrize("page", MOST_AT_NIGHT)
def test_the_compiled_commands_of_the_example_run(page, place, work_dir):
    job = compile_page(page, place)
    home, bucket = work_dir / "home", work_dir / "home/buckets/gcs/bucket"
    shutil.copytree(work_dir / "model", bucket / "model")
    for name in ("tfrecords", "photos"):
        shutil.copytree(work_dir / name, bucket / name)
    environment = {"PYTHONPATH": str(Path(detloom.__file__).parents[1]), "TF_CPP_MIN_LOG_LEVEL": "3"}
    with serve_messages() as hook:
        runner = BucketsAsFolders(home / "logs", {**environment, "CHAT_WEBHOOK": hook.url})
        result = run_job(job, Machine(home, runner, {"work": work_dir}))
    assert result.state == "SUCCEEDED", result.describe_failures()
    assert len(hook.messages) == (page.stem == "notifier")


@pytest.mark.nightly  # the runs: several nodes with Beam, each
def test_detection_example_gen(work_dir):
    outputs = run(ROOT / "docs/components/detection_example_gen.md")
    assert files_of(outputs["Examples"]) == {"Split-train", "Split-eval", "Split-test", "label_map.pbtxt"}
    assert "report.json" in files_of(outputs["detloom.Rejects"])
    assert "ExampleAnomalies" in outputs


@pytest.mark.nightly
def test_dataset_validator(work_dir):
    outputs = run(ROOT / "docs/components/dataset_validator.md")
    report = json.loads((Path(outputs["detloom.DatasetReport"].uri) / "report.json").read_text())
    assert report["splits"]["train"]["boxes_by_class"] == {"red": 4, "green": 4}


@pytest.mark.nightly
def test_detection_evaluator(work_dir):
    outputs = run(ROOT / "docs/components/detection_evaluator.md")
    assert files_of(outputs["ModelBlessing"]) == {"BLESSED"}
    assert "report.html" in files_of(outputs["ModelEvaluation"])
    assert len(list((work_dir / "serving").iterdir())) == 1


@pytest.mark.nightly
def test_model_card(work_dir):
    outputs = run(ROOT / "docs/components/model_card.md")
    assert files_of(outputs["detloom.ModelCard"]) == {"model_card.md", "model_card.html", "model_card.json"}
    (version,) = (path for path in (work_dir / "serving").iterdir() if path.name.isdecimal())
    assert (version / "assets.extra" / "model_card.md").is_file()


@pytest.mark.nightly
def test_detection_pusher(work_dir):
    outputs = run(ROOT / "docs/components/detection_pusher.md")
    assert outputs["PushedModel"].custom_properties["pushed"].int_value == 1
    assert list(Path(outputs["InferenceResult"].uri).rglob("*.gz"))


@pytest.mark.nightly
def test_retrain_decision(work_dir):
    page = ROOT / "docs/components/retrain_decision.md"
    outputs = run(page)
    assert outputs["detloom.RetrainDecision"].custom_properties["train"].int_value == 1
    assert len(list((work_dir / "records").rglob("*.json*"))) == 1
    assert "detloom.TrainingRecord" in outputs


@pytest.mark.nightly
def test_notifier(work_dir, monkeypatch):
    path = ROOT / "tests/components/notifier"
    monkeypatch.syspath_prepend(str(path))
    sent = []
    monkeypatch.setattr(
        "detloom.components.notifier.component.send", lambda message, *rest, **more: sent.append(message)
    )
    run(ROOT / "docs/components/notifier.md")
    assert [(message.event, message.pipeline) for message in sent] == [("refused", "colours")]
