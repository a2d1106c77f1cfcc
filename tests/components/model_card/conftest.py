"""Folders like the outputs of the upstream nodes, written by the nodes' own code where that is fast."""

import dataclasses
import json
from collections import Counter
from types import SimpleNamespace

import evaluations
import pytest

from detloom.components.dataset_validator.checks import CheckResult
from detloom.components.dataset_validator.params import DatasetValidatorParams
from detloom.components.dataset_validator.report.build_report import build_report, describe_split
from detloom.components.dataset_validator.statistics.split_statistics import SplitStatistics
from detloom.components.model_card.card import CardInputs, ModelCardParams, build_card
from detloom.components.properties import DATASET_REPORT_FILE
from detloom.schemas.contracts.label_map import LabelMap, write_label_map
from detloom.schemas.presets.presets import find_preset

HOSTILE = "<b>dog</b>"
LABEL_MAP = LabelMap.from_names(["cat", HOSTILE])
COUNTS = {"train": (20, {1: 30, 2: 0}), "eval": (5, {1: 4, 2: 3}), "test": (3, {1: 1, 2: 2})}  # images, boxes by id


@pytest.fixture(scope="session")
def config():
    return find_preset("ssd_mobilenet_v2_fpnlite_320x320").config


@pytest.fixture(scope="session")
def folders(tmp_path_factory, config):
    """A folder with all sources of a card; `inputs_of` names its parts. Tests copy it before they change it."""
    root = tmp_path_factory.mktemp("finished_run")
    write_model(root / "model/Format-Serving", config)
    write_run(root / "model_run", root / "examples", config)
    write_evaluation(root / "evaluation", evaluations.make_evaluation())
    write_dataset_report(root / "report")
    write_rejects(root / "rejects")
    return root


@pytest.fixture
def make_inputs(folders):
    """Create `CardInputs` of the folders with changed fields."""

    def make(root=None, **changes):
        return inputs_of(root or folders, **changes)

    return make


@pytest.fixture(scope="session")
def card(folders):
    """The card of the folders; tests do not change it."""
    return build_card(inputs_of(folders))


def inputs_of(root, **changes):
    names = {field.name for field in dataclasses.fields(ModelCardParams)} & changes.keys()
    values = {
        "params": ModelCardParams(**{"name": "pets", **{name: changes.pop(name) for name in names}}),
        "model_dir": str(root / "model/Format-Serving"),
        "tflite_dir": str(root / "model/Format-TFLite"),
        "evaluation_dir": str(root / "evaluation"),
        "model_run_dir": str(root / "model_run"),
        "dataset_report_dir": str(root / "report"),
        "rejects_dir": str(root / "rejects"),
        "examples_uris": [str(root / "examples")],
    }
    return CardInputs(**{**values, **changes})


def write_model(folder, config):
    """Write the parts of a SavedModel that a card reads."""
    from detloom.schemas.contracts.detections import OUTPUT_NAMES
    from detloom.schemas.model.export_and_quantization import Export
    from detloom.schemas.reading.typed_dict import to_canonical_json
    from detloom.trainer_module.detectors.families import family_of
    from detloom.trainer_module.export.serving_contract import format_contract

    contract = format_contract(family_of(config.model).preprocessing, OUTPUT_NAMES, 100, Export(box_units="pixels"))
    contract["versions"] = {"detloom": "9.9", "tensorflow": "2.16.2"}
    (folder / "assets").mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(b"graph")
    (folder / "assets/contract.json").write_text(json.dumps(contract))
    write_label_map(folder / "assets/label_map.pbtxt", LABEL_MAP)
    (folder / "assets/config.json").write_text(to_canonical_json(config))


def write_run(folder, examples, config):
    """Write a finished training run and its examples."""
    from detloom.schemas.contracts.metric_names import METRIC_NAMES
    from detloom.trainer_module.evaluation.coco_metrics import CocoMetrics
    from detloom.trainer_module.files.strict_json import to_strict_json
    from detloom.trainer_module.run_state.run_folder import data_fingerprint, write_settings
    from detloom.trainer_module.run_state.train_result import SUMMARY_FILE, PerformanceSummary, TrainResult
    from detloom.trainer_module.weights.freezing import PartCounts

    for split in COUNTS:
        (examples / f"Split-{split}").mkdir(parents=True)
        (examples / f"Split-{split}/data_tfrecord-00000-of-00001").write_bytes(split.encode())
    write_label_map(examples / "label_map.pbtxt", LABEL_MAP)
    shards = [[str(path) for path in (examples / f"Split-{split}").iterdir()] for split in ("train", "eval")]
    write_settings(folder, config, LABEL_MAP, data_fingerprint(*shards))
    twelve = dict.fromkeys(METRIC_NAMES, 0.25)
    result = TrainResult(
        detector=SimpleNamespace(network=SimpleNamespace(name="ssd_mobilenet_v2")),
        config=config,
        best=CocoMetrics(**twelve, per_class=(), num_images=5, num_boxes=7),
        best_step=80,
        num_steps=100,
        stopped_early=False,
        performance=PerformanceSummary(
            batch_size=8,
            precision="float32",
            num_steps=100,
            median_step_seconds=0.5,
            p90_step_seconds=0.6,
            images_per_second=16.0,
            input_share=0.0,
            step_seconds_total=50.0,
            first_call_seconds=10.0,
            phase_seconds={"evaluation": 5.0},
            peak_host_bytes=3 * 2**20,
            peak_device_bytes={},
        ),
        num_boxes_dropped=2,
        num_incidents=1,
        trained=(PartCounts("backbone", 2, 1, 1000, 600),),
    )
    (folder / SUMMARY_FILE).write_text(to_strict_json(result.summary()))
    (folder / "train_log.jsonl").write_text('{"kind": "train", "step": 100, "time": 1767225600.5}\n{"kind": "tr')


def write_evaluation(folder, evaluation):
    from detloom.components.evaluator.report.output_files import write_report

    folder.mkdir(parents=True)
    write_report(str(folder), evaluation, [])


def write_dataset_report(folder, counts=COUNTS):
    splits = {
        name: describe_split(
            SplitStatistics(num_examples=num_images, num_boxes=sum(boxes.values()), boxes_by_class_id=Counter(boxes)),
            LABEL_MAP,
            has_model=False,
            decodes_images=False,
        )
        for name, (num_images, boxes) in counts.items()
    }
    passed = CheckResult("boxes", "Unsound boxes", "fail", "passed", 0.0, 0.0, "at most", "share", "none")
    warned = dataclasses.replace(passed, title="Tiny boxes", status="warned", sentence="7 of 9 boxes are tiny")
    report = build_report(
        splits,
        [passed, warned],
        LABEL_MAP,
        DatasetValidatorParams(),
        span=4,
        drift={},
        anchors=None,
        duplicates={},
    )
    folder.mkdir(parents=True)
    (folder / DATASET_REPORT_FILE).write_text(json.dumps(report))


def write_rejects(folder):
    """Write the keys of the ingestion report that a card reads."""
    folder.mkdir(parents=True)
    report = {
        "data_format": "coco",
        "num_in": 30,
        "num_quarantined": 2,
        "num_boxes_in": 50,
        "num_boxes_rejected": 4,
        "num_boxes_quarantined": 6,
        "rejects_by_reason": {"box_without_area": 4, "missing_file": 2},
        "subfolders": ["span-3", "span-4"],
    }
    (folder / "report.json").write_text(json.dumps(report))
