import dataclasses

import numpy as np

from detloom.schemas.odapi.fields import ROOT, Field, message_types
from detloom.schemas.odapi.reader import STRUCTURES
from detloom.schemas.odapi.rules import NOTHING, Depends, Ignored, Mapped, Refused, plain_default
from detloom.schemas.reading.typed_dict import type_hints

FIELDS = [(name, field) for name in STRUCTURES for field in message_types()[name].fields.values()]
# Fields whose default in the tree differs from that of the file, with the reason.
OTHER_DEFAULTS = {
    "Ssd.num_classes": "None uses the label map's number; 0 classes cannot be trained",
    "CenterNet.num_classes": "None uses the label map's number; 0 classes cannot be trained",
    "FasterRcnn.num_classes": "None uses the label map's number; 0 classes cannot be trained",
    "FasterRcnn.initial_crop_size": "required: 0 gives no features",
    "FasterRcnn.maxpool_kernel_size": "required: the Object Detection API fails with 0",
    "FasterRcnn.maxpool_stride": "required: the Object Detection API fails with 0",
    "PenaltyReducedLogisticFocalLoss.alpha": "0 if omitted in a file; the paper's value in a run file",
    "PenaltyReducedLogisticFocalLoss.beta": "0 if omitted in a file; the paper's value in a run file",
    "SigmoidFocalClassificationLoss.alpha": "if omitted, the Object Detection API uses the same weight for both",
    "ManualStepLearningRate.LearningRateSchedule.step": "required: a change at step 0, its default, is not intended",
    "InputReader.read_block_length": "32 if omitted in a file; 1 in a run file, which mixes files best",
    "TrainConfig.num_steps": "required: 0 trains nothing",
    "CenterNet.KeypointEstimation.task_name": "required: it names the heads in checkpoints",
    "CenterNet.KeypointEstimation.KeypointLabelToStdEntry.key": "required: no keypoint has an empty name",
    "CenterNet.KeypointEstimation.KeypointLabelToStdEntry.value": "required: a Gaussian of size 0 has no cell",
    "CocoKeypointMetrics.KeypointLabelToSigmasEntry.key": "required: no keypoint has an empty name",
    "CocoKeypointMetrics.KeypointLabelToSigmasEntry.value": "required: with 0, no keypoint is close enough",
    "BidirectionalFeaturePyramidNetworks.num_iterations": "required: 0 gives no pyramid",
    "BidirectionalFeaturePyramidNetworks.num_filters": "required: 0 gives no pyramid",
    "SSDRandomCropOperation.min_aspect_ratio": "required: 0 gives no window",
    "SSDRandomCropOperation.max_aspect_ratio": "required: 0 gives no window",
    "SSDRandomCropOperation.max_area": "required: 0 gives no window",
    "SSDRandomCropPadOperation.min_aspect_ratio": "required: 0 gives no window",
    "SSDRandomCropPadOperation.max_aspect_ratio": "required: 0 gives no window",
    "SSDRandomCropPadOperation.max_area": "required: 0 gives no window",
    "SSDRandomCropFixedAspectRatioOperation.max_area": "required: 0 gives no window",
    "SSDRandomCropPadFixedAspectRatioOperation.min_aspect_ratio": "required: 0 gives no window",
    "SSDRandomCropPadFixedAspectRatioOperation.max_aspect_ratio": "required: 0 gives no window",
    "SSDRandomCropPadFixedAspectRatioOperation.max_area": "required: 0 gives no window",
    "RandomDownscaleToTargetPixels.max_target_pixels": "if omitted, the preprocessor has another",
    "TrainConfig.fine_tune_checkpoint_type": "empty means auto, unless from_detection_checkpoint is set",
}


def test_each_field_of_a_message_has_a_rule():
    for name, structure in STRUCTURES.items():
        assert set(structure.fields) == set(message_types()[name].fields), name


def test_mapped_messages_and_messages_with_rules_are_the_same():
    mapped = {field.type for name, field in FIELDS if field.kind == "message" and is_mapped(name, field)}
    ignored = [(field, rule) for name, field in FIELDS if isinstance(rule := rule_of(name, field), Ignored)]
    constants = {field.type for field, rule in ignored if rule.constant is not NOTHING}
    assert mapped | {ROOT} == set(STRUCTURES)
    assert not constants & set(STRUCTURES)


def test_every_rule_has_a_reason():
    for structure in STRUCTURES.values():
        for rule in structure.fields.values():
            usual = rule.usual if isinstance(rule, Depends) else rule
            assert isinstance(usual, Mapped) or len(usual.reason) > 10
            assert not isinstance(rule, Depends) or rule.when


def test_harmless_value_has_the_type_of_its_field_and_is_the_default():
    for name, field in FIELDS:
        rule = rule_of(name, field)
        if isinstance(rule, Refused) and rule.harmless is not NOTHING:
            assert field.kind != "message"
            assert not field.repeated
            assert type(rule.harmless) is type(field.default)
        is_value = field.kind != "message" and not field.repeated and not field.oneof
        if isinstance(rule, Refused) and is_value:
            assert rule.harmless == field.default, f"{name}.{field.name}"


def test_each_field_of_the_tree_is_mapped_or_listed():
    said = {
        (structure.makes, (rule.usual if isinstance(rule, Depends) else rule).key.partition(".")[0])
        for structure in STRUCTURES.values()
        if structure.makes
        for rule in structure.fields.values()
        if isinstance(rule.usual if isinstance(rule, Depends) else rule, Mapped)
    }
    unsaid = {
        f"{structure.makes.__name__}.{field.name}"
        for structure in STRUCTURES.values()
        if structure.makes
        for field in dataclasses.fields(structure.makes)
        if (structure.makes, field.name) not in said
    }
    inline = {
        "BatchNorm.synchronized",
        "Eval.keypoint_sigmas",
        "FasterRcnnFeatureExtractor.backbone",
        "FeatureExtractor.backbone",
        "InputReader.input_path",
        "Train.moving_average",
        "Train.optimizer",
    }  # set by rules whose key is "", or that add values
    ours = {
        "BiFpn.features_of_last_blocks",
        "Eval.best_metric",
        "Eval.evaluate_every",
        "Eval.keep_best",
        "FixedShapeResizer.half_pixel_centers",
        "KeepAspectRatioResizer.half_pixel_centers",
        "MultiscaleAnchorGenerator.strides_from_feature_maps",
        "InputReader.class_balance",
        "InputReader.image_type",
        "InputReader.shuffle_buffer_bytes",
        "InputReader.unknown_classes",
        "MomentumOptimizer.nesterov",
        "Train.checkpoint_every_n",
        "Train.debug",
        "Train.deterministic",
        "Train.early_stopping",
        "Train.fine_tune_exclude",
        "Train.fine_tune_include",
        "Train.fine_tune_min_restored_share",
        "Train.fine_tune_skip_mismatch",
        "Train.gradient_accumulation_steps",
        "Train.jit_compile",
        "Train.last_steps_without_mixing",
        "Train.learning_rate_batch_size",
        "Train.max_to_keep",
        "Train.monitoring",
        "Train.nonfinite",
        "Train.scale_learning_rate",
        "Train.seed",
        "Train.steps_per_call",
    }
    assert unsaid <= inline | ours, unsaid - inline - ours


def rule_of(name: str, field: Field) -> Mapped | Ignored | Refused:
    return STRUCTURES[name].rule(field.name)


def is_mapped(name: str, field: Field) -> bool:
    return isinstance(rule_of(name, field), Mapped)


def test_default_of_a_field_equals_that_of_the_tree():
    for name, field in FIELDS:
        rule, made = rule_of(name, field), STRUCTURES[name].makes
        if made is None or field.kind == "message" or field.repeated or not isinstance(rule, Mapped):
            continue
        if rule.read or "." in rule.key or f"{name}.{field.name}" in OTHER_DEFAULTS:
            continue  # tests/schemas/odapi/test_pipeline_config.py has a test of each
        assert rule.key in type_hints(made)
        default = plain_default(made, rule.key)
        if field.kind == "float":
            assert np.float32(default) == np.float32(field.default), f"{name}.{field.name}"
        else:
            assert (default, type(default)) == (field.default, type(field.default)), f"{name}.{field.name}"
