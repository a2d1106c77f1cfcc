from dataclasses import replace
from pathlib import Path

import pytest

import detloom.pipelines
from detloom.schemas.errors import InputError
from detloom.schemas.model.optimizers import with_scaled_steps
from detloom.schemas.presets.presets import find_preset
from detloom.schemas.reading.overrides import parse_set
from detloom.schemas.reading.typed_dict import from_json, to_canonical_json
from detloom.schemas.run_file.data import EMBEDDED_DIGITS
from detloom.schemas.run_file.read_config import read_training_config
from detloom.schemas.run_file.read_run_file import read_run_file
from detloom.schemas.run_file.run_file import DEFAULT_DETECTOR, RunFile

TEXT = """
name: cats
data: {format: voc, path: photos, splits: {train: a, eval: b, test: c}}
train: {batch_size: 2, num_steps: 3}
"""
SECTIONS = """
checks: {class_drift: {severity: fail, threshold: 0.3}, tiny_boxes: {min_side_px: 2}}
gates: {override: {reason: The camera was replaced., by: Ada, until: "2026-12-31"}}
push: {load_seconds: 60, vertex: {project: my-project, region: us-central1, endpoint_name: cells,
  container_image: image, traffic_percent: 5}}
model_card: {purpose: Zählt Zellen., owners: [Ada], citation: "a\\nb", limits: [One camera.]}
retrain: {records: records, min_new_images: 1}
schedule: {cron: 0 3 * * 1, timezone: Asia/Tokyo, catch_up: true, start: "2026-01-01", caching: false}
kubeflow: {image: x/detloom:1, pipeline_root: "minio://mlpipeline/root", token: env:KFP_TOKEN,
  volumes: [{claim: data, mount_path: /data}]}
vertex: {project: my-project, region: us-central1, image: x/detloom:1, pipeline_root: "gs://bucket/root",
  service_account: runner@my-project.iam.gserviceaccount.com, network: projects/123/global/networks/lab,
  encryption_key: projects/my-project/locations/us-central1/keyRings/ring/cryptoKeys/key,
  labels: {team: cells, cost-center: ""}}
"""


def write(tmp_path: Path, text: str) -> Path:
    (tmp_path / "photos").mkdir(exist_ok=True)
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return path


def test_data_path_is_relative_to_the_run_file_and_workspace_to_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path.parent)
    run = read_run_file(write(tmp_path, TEXT))
    assert run.data.path == str(tmp_path / "photos")
    assert run.workspace == str(tmp_path.parent / "detloom_runs" / "cats")
    assert run.push_to == str(tmp_path.parent / "detloom_runs" / "cats" / "serving")


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("zoo/ckpt-0", "{folder}/zoo/ckpt-0"),
        ("~/ckpt-0", "/home/of/somebody/ckpt-0"),
        (" zoo/ckpt-0 ", "{folder}/zoo/ckpt-0"),
        ("/zoo/ckpt-0", "/zoo/ckpt-0"),
        ("gs://bucket/zoo/ckpt-0", "gs://bucket/zoo/ckpt-0"),
        ("imagenet", "imagenet"),
        ("", ""),
        ("PATH_TO_BE_CONFIGURED/ckpt-0", "PATH_TO_BE_CONFIGURED/ckpt-0"),
    ],
)
def test_checkpoint_is_relative_to_the_run_file(tmp_path, monkeypatch, written, read):
    monkeypatch.setenv("HOME", "/home/of/somebody")
    monkeypatch.chdir("/")  # like a timer
    run = read_run_file(
        write(tmp_path, TEXT.replace("train: {batch", f"train: {{fine_tune_checkpoint: '{written}', batch"))
    )
    assert run.train.fine_tune_checkpoint == read.format(folder=tmp_path)


def test_paths_of_overrides_are_relative_to_the_current_folder(tmp_path, monkeypatch):
    other = tmp_path / "other"
    (other / "photos").mkdir(parents=True)
    monkeypatch.chdir(other)
    keys = ("train.fine_tune_checkpoint", "push_to", "workspace")
    overrides = [*(parse_set(f"{key}=given") for key in keys), parse_set("data.path=photos")]
    run = read_run_file(write(tmp_path, TEXT), overrides=overrides)
    assert {run.train.fine_tune_checkpoint, run.push_to, run.workspace} == {str(other / "given")}
    assert run.data.path == str(other / "photos")
    assert read_training_config(str(tmp_path / "run.yaml"), overrides).train == run.train


def test_data_and_artifacts_may_be_in_a_bucket_and_the_workspace_an_argument(tmp_path, monkeypatch):
    monkeypatch.setenv("BUCKET", "gs://bucket")
    text = TEXT.replace("path: photos", "path: '${BUCKET}/photos'") + "pipeline_root: '${BUCKET}/root/'\n"
    run = read_run_file(write(tmp_path, text), tmp_path / "ws")
    assert (run.data.path, run.pipeline_root) == ("gs://bucket/photos", "gs://bucket/root")
    assert (run.workspace, run.push_to) == (str(tmp_path / "ws"), str(tmp_path / "ws" / "serving"))


@pytest.mark.parametrize(
    ("key", "value"), [("pipeline_root", "s3://bucket/root"), ("pipeline_root", "root"), ("path", "s3://bucket/photos")]
)
def test_other_places_of_data_and_artifacts_are_refused(tmp_path, key, value):
    text = TEXT.replace("path: photos", f"path: '{value}'") if key == "path" else f"{TEXT}pipeline_root: {value}\n"
    with pytest.raises(InputError, match=rf"{key}: got '.*{value}', allowed: .*gs://"):
        read_run_file(write(tmp_path, text))


def test_environment_variables_are_expanded_in_paths_and_nowhere_else(tmp_path, monkeypatch):
    monkeypatch.setenv("PHOTOS", str(tmp_path / "elsewhere"))
    (tmp_path / "elsewhere" / "x").mkdir(parents=True)
    text = TEXT.replace("path: photos", "path: '${PHOTOS}/x'").replace("train: a", "train: '${PHOTOS}'")
    run = read_run_file(write(tmp_path, text))
    assert run.data.path == str(tmp_path / "elsewhere" / "x")
    assert run.data.splits.train == "${PHOTOS}"


def test_unset_variable_is_located(tmp_path, monkeypatch):
    monkeypatch.delenv("PHOTOS", raising=False)
    with pytest.raises(InputError, match=r"run\.yaml:3: data\.path: the environment variable PHOTOS is not set"):
        read_run_file(write(tmp_path, TEXT.replace("path: photos", "path: '${PHOTOS}'")))


def test_span_in_the_data_path_is_kept(tmp_path):
    run = read_run_file(write(tmp_path, TEXT.replace("path: photos", "path: 'day-{SPAN}'")))
    assert run.data.path == str(tmp_path / "day-{SPAN}")


def test_default_detector_provides_the_sections(tmp_path):
    run, preset = read_run_file(write(tmp_path, TEXT)), find_preset(DEFAULT_DETECTOR).config
    assert (run.model, run.eval) == (preset.model, preset.eval)
    scaled = with_scaled_steps(preset.train.optimizer.learning_rate, 3 / preset.train.num_steps)
    assert run.train.optimizer == replace(preset.train.optimizer, learning_rate=scaled)
    assert (run.train.batch_size, run.train.num_steps) == (2, 3)
    assert run.config.model is run.model


def test_a_named_preset_or_a_file_beside_the_run_file_provides_the_sections(tmp_path):
    from detloom.schemas.odapi.pipeline_config import format_pipeline_config

    (tmp_path / "my.config").write_text(format_pipeline_config(find_preset("efficientdet_d1").config))
    for detector, preset in (("efficientdet_d0", "efficientdet_d0"), ("my.config", "efficientdet_d1")):
        run = read_run_file(write(tmp_path, f"{TEXT}detector: {detector}\n"))
        assert run.model == find_preset(preset).config.model
        assert run.train.batch_size == 2


def test_overrides_replace_values_of_the_file_and_keep_its_sections(tmp_path):
    settings = ("train.batch_size=4", "gates.baseline.min_ap_change=-0.5", "name=dogs", "detector=efficientdet_d2")
    run = read_run_file(write(tmp_path, TEXT), overrides=[parse_set(setting) for setting in settings])
    assert (run.train.batch_size, run.gates.baseline.min_ap_change, run.name) == (4, -0.5, "dogs")
    assert (run.model, run.train.num_steps) == (find_preset("efficientdet_d2").config.model, 3)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "format: voc",
            "format: vok",
            r"run\.yaml:3: data\.format: got 'vok', allowed: 'auto', 'coco', 'voc'.* Did you mean 'voc'",
        ),
        (
            "splits: {train: a, eval: b, test: c}",
            "num_spans: 1",
            r"run\.yaml:3: data\.splits: got neither .*; set data\.splits or data\.split_by_ratio",
        ),
        (
            "splits: {train: a,",
            "split_by_ratio: {}, splits: {train: a,",
            r"run\.yaml:3: data\.splits: got both .*split_by_ratio, allowed: one of the two",
        ),
        (
            "splits: {train: a, eval: b, test: c}",
            "split_by_ratio: {train: 0.8, eval: 0.2}",
            r"run\.yaml:3: data\.split_by_ratio\.train: got train 0\.8 \+ eval 0\.2 \+ test 0\.1 = 1\.1, allowed",
        ),
        (
            "splits: {train: a, eval: b, test: c}",
            "split_by_ratio: {group_by: cam}",
            r"run\.yaml:3: data\.split_by_ratio\.group_by: got 'cam', allowed: a regular expression",
        ),
        (
            "splits: {train: a, eval: b, test: c}",
            "splits: {train: a, eval: b, test: c}, num_spans: 3",
            r"run\.yaml:3: data\.num_spans: got 3, allowed: 1 .*\{SPAN\}",
        ),
        ("name: cats", "name: My Cats", r"run\.yaml:2: name: got 'My Cats', allowed: lower case"),
        ("batch_size: 2", "batch_size: 0", r"run\.yaml:4: train\.batch_size: got 0, allowed: 1 or more"),
        (
            "name: cats",
            "name: cats\ngates: {floors: [{metric: AP50, min: 80}]}",
            r"run\.yaml:3: gates\.floors\[0\]\.min: got 80\.0, allowed: 0 to 1",
        ),
        (
            "name: cats",
            "name: cats\ngates: {changes: [{metric: AP, min_change: 0, slice: camra=north}]}\n"
            "evaluator: {image_slices: [{feature: camera}]}",
            r"run\.yaml:3: gates\.changes: got the slice 'camra=north', allowed: .*camera",
        ),
        (
            "name: cats",
            "name: cats\nevaluator: {runtime: openvino}",
            r"run\.yaml:3: evaluator\.runtime: got openvino, allowed: tensorflow, unless export\.onnx",
        ),
        ("test: c", "cut_share: 1.5", r"run\.yaml:3: data\.splits\..*cut_share"),
        ("test: c", "test: c, cut_share: 0.1", r"run\.yaml:3: data\.splits\.cut_share: got 0\.1, allowed: 0"),
        ("eval: b, test: c", "cut_share: 0.1", r"run\.yaml:3: data\.splits.*split_by_ratio"),
        ("test: c", "test: a", r"run\.yaml:3: data\.splits\.test: got 'a', allowed: another split than train"),
        ("path: photos", "path: nowhere", r"run\.yaml:3: data\.path: got 'nowhere'"),
        ("path: photos", "path: 's3://ann:hunter2@b/x'", r"data\.path: got 's3://\(hidden\)@b/x', allowed: a folder"),
        ("name: cats", 'name: cats\nworkspace: "a\\0b"', r"run\.yaml:3: workspace: got 'a\\x00b', allowed: a fold"),
        ("name: cats", "name: cats\ndetector: run.yaml", r"run\.yaml:3: detector: .*run\.yaml: .*run file"),
        ("test: c", "tset: c", r"run\.yaml:3: data\.splits\.tset: unknown key.*Did you mean 'test'"),
        ("name: cats", "nmae: cats", r"run\.yaml:2: nmae: unknown key.*Did you mean 'name'"),
        ("train: {", "model: {image_resizer: {hight: 3}}\ntrain: {", r"run\.yaml:4: model\.image_resizer\.hight: unkn"),
        (
            "name: cats",
            "name: cats\ndetector: efficientdet_d9",
            r"run\.yaml:3: detector: .*Did you mean 'efficientdet_d",
        ),
        (
            "name: cats",
            "name: cats\nnodes: [{node: Trainer}, {node: '*'}, {node: Trainer}]",
            r"run\.yaml:3: nodes: .*'Trainer' appears twice",
        ),
        ("name: cats", "name: cats\ndetector: 3", r"run\.yaml:3: detector: got 3, allowed"),
        ("train: {batch_size: 2, num_steps: 3}", "train:", r"run\.yaml:4: train: got null, allowed: a mapping"),
    ],
)
def test_error_names_file_line_and_key(tmp_path, old, new, message):
    with pytest.raises(InputError, match=message):
        read_run_file(write(tmp_path, TEXT.replace(old, new)))


def test_json_of_all_sections_round_trips(tmp_path):
    run = read_run_file(write(tmp_path, TEXT + SECTIONS))
    assert run.push.vertex.traffic_percent == 5
    assert from_json(RunFile, to_canonical_json(run)) == run


@pytest.mark.parametrize("text", ["", "- 1\n", "cats\n"])
def test_file_that_is_not_a_mapping_is_rejected(tmp_path, text):
    with pytest.raises(InputError, match=r"run\.yaml:1: got no mapping, allowed: "):
        read_run_file(write(tmp_path, text))


def test_samples_are_valid(monkeypatch, tmp_path):
    monkeypatch.setenv("BCCD_DIR", str(tmp_path))
    samples = Path(detloom.pipelines.__file__).parent / "samples"
    runs = {path.stem: read_run_file(path) for path in samples.glob("*.yaml")}
    assert runs["demo"].data.path == EMBEDDED_DIGITS
    assert runs["bccd"].data.path == str(tmp_path)


def test_trainer_and_tuner_sections_are_read(tmp_path):
    text = TEXT + (
        "trainer: {strategy: {kind: mirrored, devices: ['GPU:0', 'GPU:1']}, warm_start: production}\n"
        "tuner: {max_trials: 3, steps_per_trial: 2, space: [{key: train.batch_size, choices: [2, 4]}]}\n"
    )
    run = read_run_file(write(tmp_path, text))
    assert run.trainer.strategy.devices == ("GPU:0", "GPU:1")
    assert run.trainer.warm_start == "production"
    assert (run.tuner.algorithm, run.tuner.space[0].choices) == ("bayesian", (2.0, 4.0))
    without = read_run_file(write(tmp_path, TEXT))
    assert (without.trainer.strategy.kind, without.trainer.warm_start, without.tuner) == ("auto", "none", None)


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ("space: [{key: train.batch_size, choices: [0]}]", r"tuner\.space: hyperparameter train\.batch_size: "),
        ("space: [{key: train.batchsize, choices: [1]}]", r"tuner\.space: .*train\.batchsize"),
        ("objective: AP5", r"tuner\.objective: got 'AP5'"),
    ],
)
def test_invalid_search_is_rejected(tmp_path, search, message):
    with pytest.raises(InputError, match=rf"run\.yaml:5: {message}"):
        read_run_file(write(tmp_path, f"{TEXT}tuner: {{steps_per_trial: 3, {search}}}\n"))
