"""Single fields of a `pipeline.config`: each test changes a small complete file in one place."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from detloom.schemas.errors import InputError
from detloom.schemas.model.augmentations import RandomHorizontalFlip
from detloom.schemas.model.config import Eval, InputReader
from detloom.schemas.model.crop_augmentations import RandomCropImage
from detloom.schemas.model.network import BatchNorm, BiFpn, ConvHyperparams, Fpn, L2Regularizer, RandomNormalInitializer
from detloom.schemas.model.optimizers import (
    ClipByGlobalNorm,
    CosineDecayLearningRate,
    LearningRateStep,
    ManualStepLearningRate,
    MomentumOptimizer,
    MovingAverage,
    RmsPropOptimizer,
)
from detloom.schemas.odapi.pipeline_config import format_pipeline_config, read_pipeline_config, refusal
from detloom.schemas.reading.text_file import read_text_file

CONFIGS = Path(__file__).parents[1] / "configs"
FPNLITE = (CONFIGS / "fpnlite.config").read_text()


def override_of(field):
    """Return the path of a field such as `a.b[0].c: 1`, and the text that sets it: `a { b { c: 1 } }`."""
    path, value = re.fullmatch(r"([^ :]+)(.*)", field).groups()
    *outer, last = re.sub(r"\[\d+\]", "", path).split(".")
    return path, "".join(f"{name} {{ " for name in outer) + last + value + " }" * len(outer)


# --- complete files ---------------------------------------------------------------------------------------------------


def test_fpnlite_file_loads():
    config = read_pipeline_config(CONFIGS / "fpnlite.config")
    extractor = config.model.feature_extractor
    assert (extractor.backbone, extractor.neck) == ("mobilenet_v2", Fpn(additional_layer_depth=128))
    assert extractor.conv_hyperparams == ConvHyperparams(
        activation="RELU_6",
        regularizer=L2Regularizer(weight=4e-5),
        initializer=RandomNormalInitializer(stddev=0.01),
        batch_norm=BatchNorm(decay=0.98, scale=True),
    )
    assert config.model.num_classes == 3
    assert config.train.optimizer == MomentumOptimizer(
        learning_rate=CosineDecayLearningRate(
            learning_rate_base=0.02, total_steps=1500, warmup_learning_rate=0.005, warmup_steps=100
        )
    )
    assert config.train.moving_average is None
    assert config.train.augmentations == (
        RandomHorizontalFlip(),
        RandomCropImage(min_object_covered=0.0, min_area=0.6, max_aspect_ratio=2.0, overlap_thresh=0.25),
    )
    assert config.train_input.input_path == ("train-*.tfrecord", "more-*.tfrecord")
    assert (config.eval_input.shuffle, config.eval_input.num_epochs) == (False, 1)


def test_efficientdet_file_loads():
    config = read_pipeline_config(CONFIGS / "efficientdet.config")
    extractor = config.model.feature_extractor
    assert (extractor.backbone, extractor.neck) == ("efficientnet-b0", BiFpn(num_iterations=2, num_filters=48))
    assert config.model.add_background_class is False
    assert config.train.optimizer == RmsPropOptimizer(
        epsilon=0.001,
        learning_rate=ManualStepLearningRate(
            initial_learning_rate=0.001,
            warmup=True,
            schedule=(LearningRateStep(step=200, learning_rate=0.01), LearningRateStep(step=2000, learning_rate=0.001)),
        ),
    )
    assert config.train.moving_average == MovingAverage(decay=0.999)
    assert config.train.gradient_clipping == ClipByGlobalNorm(norm=10.0)
    assert config.eval == Eval(batch_size=4, use_moving_averages=True)
    assert config.train_input == InputReader(
        read_block_length=32, label_map_path="parts.pbtxt", input_path=("train.tfrecord",), max_number_of_boxes=60
    )


def test_synchronized_batch_norm_round_trips(config_of):
    text = FPNLITE.replace("batch_norm {", "sync_batch_norm {")
    config = config_of(text)
    assert config.model.feature_extractor.conv_hyperparams.batch_norm == replace(
        config_of(FPNLITE).model.feature_extractor.conv_hyperparams.batch_norm, synchronized=True
    )
    written = format_pipeline_config(config)
    assert "sync_batch_norm {" in written
    assert " batch_norm {" not in written
    assert config_of(written) == config


def test_every_note_names_field_line_value_and_key(parse):
    report = parse("model { ssd {\n num_classes: 3 } }\n\ntrain_config { sync_replicas: true }")
    (mapped,) = (note for note in report.mapped if note.path == "model.ssd.num_classes")
    assert (mapped.where, mapped.value, mapped.reason) == ("F:2", "3", "model.num_classes")
    (sync,) = report.ignored
    assert (sync.path, sync.where, sync.value) == ("train_config.sync_replicas", "F:4", "true")


def test_every_key_has_its_line(parse):
    locate = parse(FPNLITE).located.locate
    line = FPNLITE[: FPNLITE.index("max_aspect_ratio")].count("\n") + 1
    assert locate(("train", "augmentations", 1, "max_aspect_ratio")) == f"F:{line}"
    assert locate(("train", "augmentations", 1, "clip_boxes")) == f"F:{line}"  # omitted: the line of the step
    assert locate(("train", "seed")) == "F:2"
    assert locate(("nothing",)) == "F:1"


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("train_config.batch_size: 0", "override:1: train.batch_size: got 0, allowed: 1 or more."),
        (
            "train_config.gradient_clipping_by_norm: -1",
            "override:1: train.gradient_clipping.norm: got -1.0, allowed",
        ),
        ("train_config.gradient_clipping_by_norm: inf", "got inf, allowed"),
        ("model.ssd.feature_extractor.fpn.max_level: 6", "model.anchor_generator.max_level: got 7, allow"),
        ("model.ssd.loss.hard_example_miner {}", "override:1: model.loss.hard_example_miner: got "),
        (
            "model.ssd.post_processing.batch_non_max_suppression.max_total_detections: 5",
            "max_detections_per_class: got 100, allowed: at most max_total_detections (5).",
        ),
    ],
)
def test_value_out_of_range_is_located(field, message, config_of):
    with pytest.raises(InputError) as error:
        config_of(FPNLITE, override_of(field)[1])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


# --- refused and ignored ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        (
            "model.faster_rcnn.second_stage_box_predictor.convolutional_box_predictor {}",
            "not supported in model.faster_rcnn; supported: mask_rcnn_box_predictor",
        ),
        (
            "model.ssd.box_predictor.mask_rcnn_box_predictor {}",
            "not supported; supported: convolutional_box_predictor",
        ),
        (
            "model.faster_rcnn.feature_extractor.conv_hyperparams {} type: 'faster_rcnn_resnet50_keras'",
            "faster_rcnn_resnet50_keras does not have this field",
        ),
        (
            "model.faster_rcnn.feature_extractor.type: 'faster_rcnn_nas_keras'",
            'got "faster_rcnn_nas_keras", allowed: faster_rcnn_resnet50_keras',
        ),
        (
            "model.center_net.feature_extractor.type: 'resnet_v1_18_fpn'",
            'got "resnet_v1_18_fpn", allowed: resnet_v1_50_fpn, resnet_v1_101_fpn, resnet_v2_50',
        ),
        (
            "model.center_net.keypoint_estimation_task[1] {} keypoint_estimation_task {}",
            "keypoints of more than one class are not supported",
        ),
        (
            "model.center_net.keypoint_estimation_task[0].predict_depth: true",
            "got true, allowed: false; the depth of keypoints is not supported",
        ),
        (
            "model.center_net.keypoint_estimation_task[0].candidate_ranking_mode: 'score_distance_ratio'",
            'got "score_distance_ratio", allowed: min_distance; the nearest candidate is taken',
        ),
        ("model.ssd.feature_extractor.type: 'ssd_mobilenet_v2_fpn'", "got"),
        ("model.ssd.feature_extractor.num_layers: 6", "ssd_mobilen"),
        ("model.ssd.matcher.bipartite_matcher {}", "not supported"),
        ("model.ssd.image_resizer.identity_resizer {}", "not"),
        ("model.ssd.image_resizer.fixed_shape_resizer.convert_to_grayscale: true", "got true, allowed: false; "),
        ("eval_input_reader[1] { shuffle: true }", "evaluation reads only the first"),
        ("eval_config.metrics_set: 'pascal_voc_metrics'", "got ["),
        ("train_input_reader.load_instance_masks: true", "mask_type is NUMERICAL_MASKS, which is also its default"),
        ("train_input_reader.keypoint_type_weight: [0.5]", "weights of single keypoints are not supported"),
        ("eval_config.parameterized_metric[1] {} parameterized_metric {}", "a model has keypoints of one class"),
        (
            "train_config.load_all_detection_checkpoint_vars: true",
            "got true, allowed: false; the TF2 loop rejects it too",
        ),
        (
            "train_config.fine_tune_checkpoint_type: 'segmentation'",
            'got "segmentation", allowed: classification, detection, full',
        ),
        ("graph_rewriter {}", "quantization-aware training is not supported"),
        ("train_config.data_augmentation_options[2].rgb_to_gray {}", "returns images with one channel"),
    ],
)
def test_unsupported_field_is_refused(field, reason, refused):
    path, override = override_of(field)
    found = refused(override)
    assert next(iter(found)) == path
    assert found[path].startswith(reason)


@pytest.mark.parametrize(
    ("field", "phrases"),
    [
        ("ssd.feature_extractor.type: 'ssd_resnet50_v1_fpn'", ["TF1", "Did you mean 'ssd_resnet50_v1_fpn_keras'?"]),
        ("faster_rcnn.feature_extractor.type: 'faster_rcnn_inception_v2'", ["TF1", "'faster_rcnn_resnet50_keras'."]),
        ("ssd.feature_extractor.type: 'ssd_mobilenet_v3_small'", ["TF1 only", "'ssd_mobilenet_v2_fpn_keras'."]),
        (
            "faster_rcnn.second_stage_box_predictor.rfcn_box_predictor {}",
            ["TF1 only", "supports mask_rcnn_box_predictor"],
        ),
        ("faster_rcnn.second_stage_box_predictor {}", ["allowed: mask_rcnn_box_predictor"]),
    ],
)
def test_names_of_tf1_are_refused_as_such_with_the_counterpart(field, phrases, refused):
    path, override = override_of(f"model.{field}")
    reason = refused(override)[path.removesuffix(" {}")]
    assert [phrase for phrase in phrases if phrase not in reason] == []


def test_fields_of_a_refused_message_are_listed(parse):
    report = parse(FPNLITE, "graph_rewriter {\n quantization {\n delay: 2 weight_bits: 4 } }")
    assert [(note.path, note.where, note.value) for note in report.refused] == [
        ("graph_rewriter", "override:1", "{...}"),
        ("graph_rewriter.quantization.delay", "override:3", "2"),
        ("graph_rewriter.quantization.weight_bits", "override:3", "4"),
    ]
    assert {note.reason for note in report.refused[1:]} == {"part of graph_rewriter"}


def test_replaced_values_are_listed(parse):
    report = parse(FPNLITE, "model { center_net {} } train_config { num_steps: 7 }")
    reasons = {note.path: note.reason for note in report.ignored}
    assert reasons["train_config.num_steps"] == "overwritten at override:1"
    assert reasons["model.ssd.num_classes"] == "replaced by center_net at override:1"


def test_supported_steps_keep_their_lines_next_to_refused_ones(parse):
    steps = "data_augmentation_options: [{ rgb_to_gray {} }, {},\n { random_rotation90 {} }]"
    report = parse(f"train_config {{ {steps} }}")
    assert report.located.data["train"]["augmentations"] == [{"type": "RandomRotation90"}]
    assert report.located.locate(("train", "augmentations", 0)) == "F:2"


def test_fields_of_an_unknown_extension_are_refused(refused):
    found = refused("[acme.quantize] { bits: 8 rule { name: 'x' } }")
    assert found == {
        "[acme.quantize].bits": "the extension [acme.quantize] is unknown",
        "[acme.quantize].rule.name": "the extension [acme.quantize] is unknown",
    }


@pytest.mark.parametrize(
    "override",
    [
        "train_config { replicas_to_aggregate: 4 startup_delay_steps: 0 max_number_of_boxes: 5 }",
        "train_config { unpad_groundtruth_tensors: false merge_multiple_label_boxes: false }",
        "train_config { load_all_detection_checkpoint_vars: false }",
        "eval_config { num_examples: 10 max_evals: 1 keypoint_edge { start: 1 end: 2 } skip_labels: true }",
        "train_input_reader { num_parallel_batches: 1 input_type: TF_EXAMPLE load_instance_masks: false }",
        "train_input_reader { load_instance_masks: true mask_type: PNG_MASKS num_keypoints: 17 }",
        "eval_config { eval_instance_masks: true super_categories { key: 'vehicle' value: 'car,bus' } }",
        "model { ssd { implicit_example_weight: 0.2 explicit_background_class: false } }",
        "model { ssd { post_processing { batch_non_max_suppression { use_hard_nms: true use_cpu_nms: true } } } }",
        "model { ssd { loss { equalization_loss { weight: 2 } min_num_negative_samples: 3 } } }",
    ],
)
def test_fields_without_effect_are_ignored(override, config_of, notes, ignored):
    before, after = config_of(FPNLITE), config_of(FPNLITE, override)
    assert before == after
    assert len(ignored(override)) > len(notes("ignored", FPNLITE))


def test_external_input_is_ignored(config_of, ignored):
    reader = "train_input_reader { external_input_reader { [other.reader] { path: 'a' } } }"
    assert config_of(FPNLITE, reader).train_input.input_path == ()
    assert "train_input_reader.external_input_reader.[other.reader].path" in ignored(reader)


def test_hard_nms_contradicts_soft_nms(refused):
    nms = "model { ssd { post_processing { batch_non_max_suppression { %s soft_nms_sigma: 0.5 } } } }"
    assert list(refused(nms % "use_hard_nms: true")) == [
        "model.ssd.post_processing.batch_non_max_suppression.use_hard_nms"
    ]
    assert refused(nms % "use_hard_nms: false") == {}


def test_error_names_the_first_refused_field_and_counts_the_others(tmp_path, parse):
    path = tmp_path / "F.config"
    path.write_text("model {\n experimental_model { name: 'x' } }")
    with pytest.raises(InputError) as error:
        read_pipeline_config(path)
    assert str(error.value).startswith(f"{path}:2: model.experimental_model: ")
    assert f"2 more: detloom config check {path}" in str(error.value)
    one = parse(FPNLITE, "graph_rewriter {}")
    assert str(refusal(one)).startswith("override:1: graph_rewriter: ")
    assert "more" not in str(refusal(one))


# --- files ------------------------------------------------------------------------------------------------------------


def test_byte_order_mark_is_skipped(tmp_path):
    (tmp_path / "F").write_bytes(b"\xef\xbb\xbfmodel {}")
    assert read_text_file(tmp_path / "F") == "model {}"


def test_tolerances_of_keypoints_are_mapped(config_of):
    sigmas = "keypoint_label_to_sigmas { key: 'nose' value: 0.026 } keypoint_label_to_sigmas { key: 'tail' value: 0.1 }"
    text = f"eval_config {{ parameterized_metric {{ coco_keypoint_metrics {{ class_label: 'cat' {sigmas} }} }} }}"
    found = config_of(FPNLITE, text).eval.keypoint_sigmas
    assert [(each.name, each.sigma) for each in found] == [("nose", 0.026), ("tail", 0.1)]
    masks = config_of(FPNLITE, "eval_config { metrics_set: 'coco_mask_metrics' }").eval.metrics_set
    assert masks == ("coco_detection_metrics", "coco_mask_metrics")
