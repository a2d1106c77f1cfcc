"""Omitted fields and deprecated spellings: each test changes a small complete file in one place."""

from collections.abc import Callable
from pathlib import Path

import pytest

from detloom.schemas.model.config import Eval, InputReader, TrainEvalConfig
from detloom.schemas.model.network import (
    BatchNorm,
    BiFpn,
    ConvHyperparams,
    ExtraFeatureLayers,
    Fpn,
    L2Regularizer,
    VarianceScalingInitializer,
)
from detloom.schemas.model.optimizers import ClipByGlobalNorm, MovingAverage

CONFIGS = Path(__file__).parents[1] / "configs"
FPNLITE = (CONFIGS / "fpnlite.config").read_text()
EFFICIENTDET = (CONFIGS / "efficientdet.config").read_text()
ANCHORS = "model.ssd.anchor_generator.multiscale_anchor_generator"


def replaced(text: str, *pairs: tuple[str, str]) -> str:
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.fixture
def with_train(config_of: Callable[..., TrainEvalConfig]) -> Callable[[str], TrainEvalConfig]:
    """Return a function that parses the small file with more fields of train_config."""
    return lambda fields: config_of(FPNLITE, f"train_config {{ {fields} }}")


# --- omitted fields ---------------------------------------------------------------------------------------------------


def test_moving_averages_are_on_by_default(config_of, ignored, with_train):
    text = replaced(FPNLITE, ("use_moving_average: false", ""))
    assert config_of(text).train.moving_average == MovingAverage(decay=0.9999, dynamic=True)
    average = "optimizer { moving_average_decay: 0.5 }"
    assert config_of(text, f"train_config {{ {average} }}").train.moving_average == MovingAverage(decay=0.5)
    assert with_train(average).train.moving_average is None
    assert "train_config.optimizer.moving_average_decay" in ignored(f"train_config {{ {average} }}")


def test_omitted_alpha_is_none(config_of):
    text = replaced(FPNLITE, ("{ alpha: 0.25 }", "{}"))
    assert config_of(text).model.loss.classification_loss.alpha is None


def test_omitted_regularizer_and_initializer_have_keras_defaults(config_of):
    assert config_of(EFFICIENTDET).model.box_predictor.conv_hyperparams.regularizer == L2Regularizer(weight=0.0)
    for text in ("", "conv_hyperparams {}", "conv_hyperparams { regularizer {} initializer {} }"):
        head = f"model {{ ssd {{ box_predictor {{ convolutional_box_predictor {{ {text} }} }} }} }}"
        found = config_of(FPNLITE, head).model.box_predictor.conv_hyperparams
        assert found == ConvHyperparams(
            regularizer=L2Regularizer(weight=0.0),
            initializer=VarianceScalingInitializer(factor=1.0, mode="FAN_AVG", uniform=True),
        )


def test_empty_batch_norm_has_defaults_and_omitted_one_is_none(config_of):
    norm = "batch_norm { scale: true decay: 0.98 }"
    assert config_of(replaced(FPNLITE, (norm, "batch_norm {}"))).model.box_predictor.conv_hyperparams.batch_norm == (
        BatchNorm()
    )
    assert config_of(replaced(FPNLITE, (norm, ""))).model.box_predictor.conv_hyperparams.batch_norm is None


def test_omitted_sections_have_the_defaults_of_the_tree(config_of):
    text = FPNLITE[: FPNLITE.index("train_input_reader")]
    config = config_of(text)
    assert (config.train_input, config.eval, config.eval_input) == (InputReader(), Eval(), InputReader())


@pytest.mark.parametrize(
    ("extractor", "neck"),
    [
        ("ssd_mobilenet_v2_fpn_keras", Fpn()),
        ("ssd_resnet50_v1_fpn_keras", Fpn()),
        ("ssd_efficientnet-b0_bifpn_keras", BiFpn(num_iterations=3, num_filters=64)),
        ("ssd_efficientnet-b4_bifpn_keras", BiFpn(num_iterations=7, num_filters=224)),
        ("ssd_efficientnet-b7_bifpn_keras", BiFpn(num_iterations=8, num_filters=384, combine_method="sum")),
    ],
)
def test_omitted_pyramid_is_that_of_the_feature_extractor(extractor, neck, config_of):
    text = replaced(
        FPNLITE,
        ("fpn { additional_layer_depth: 128 }", ""),
        ("ssd_mobilenet_v2_fpn_keras", extractor),
        ("use_depthwise: true\n      \n", ""),
        ("override_base_feature_extractor_hyperparams: true", ""),
    )
    assert config_of(text).model.feature_extractor.neck == neck


def test_plain_ssd_has_extra_layers(config_of):
    text = replaced(
        FPNLITE,
        ("fpn { additional_layer_depth: 128 }", ""),
        ("ssd_mobilenet_v2_fpn_keras", "ssd_mobilenet_v1_keras"),
        ("multiscale_anchor_generator", "ssd_anchor_generator"),
    )
    extractor = config_of(text).model.feature_extractor
    assert (extractor.backbone, extractor.neck) == ("mobilenet_v1", ExtraFeatureLayers(num_layers=6))
    five = (
        "model { ssd { feature_extractor { num_layers: 5 } anchor_generator { ssd_anchor_generator { num_layers: 5 }}}}"
    )
    assert config_of(text, five).model.feature_extractor.neck == ExtraFeatureLayers(num_layers=5)


@pytest.mark.parametrize(
    ("left_out", "path", "reason"),
    [
        ("num_steps: 1500  ", "train_config.num_steps", "is missing"),
        ("box_coder { faster_rcnn_box_coder {} }", "model.ssd.box_coder", "is missing"),
        ("similarity_calculator { iou_similarity {} }", "model.ssd.similarity_calculator", "is missing"),
        ("{ fixed_shape_resizer { height: 320 width: 320 } }", "model.ssd.image_resizer", "nothing is set, allowed: "),
        ("{ weighted_smooth_l1 {} }", "model.ssd.loss.localization_loss", "nothing is set, allowed: weighted_l2"),
        ('type: "ssd_mobilenet_v2_fpn_keras"', "model.ssd.feature_extractor.type", "is missing"),
        ("{ random_horizontal_flip {} }", "train_config.data_augmentation_options[0]", "nothing is set"),
        ("aspect_ratios: [1.0, 2.0, 0.5]", f"{ANCHORS}.aspect_ratios", "is missing"),
    ],
)
def test_missing_required_field_is_named(left_out, path, reason, notes):
    text = replaced(FPNLITE, (left_out, "{}" if left_out.startswith("{") else ""))
    ((found, why),) = notes("refused", text).items()
    assert found == path
    assert why.startswith(reason)


@pytest.mark.parametrize(
    ("optimizer", "path"),
    [
        ("optimizer {}", "optimizer"),
        ("optimizer { use_moving_average: false }", "optimizer"),
        ("", "optimizer"),
        ("optimizer { adam_optimizer {} }", "optimizer.adam_optimizer.learning_rate"),
        ("optimizer { adam_optimizer { learning_rate {} } }", "optimizer.adam_optimizer.learning_rate"),
    ],
)
def test_empty_optimizer_is_refused(optimizer, path, notes):
    text = replaced(FPNLITE, ("train_config {", "eval_config { eval_master: 'x' } model {} train_config {"))
    start, end = text.index("  optimizer {"), text.index("  sync_replicas")
    assert list(notes("refused", text[:start] + optimizer + text[end:])) == [f"train_config.{path}"]


def test_empty_file_lacks_model_and_train_config_and_a_schedule_may_not_be_empty(notes):
    assert notes("refused", "") == {"model": "is missing", "train_config": "is missing"}
    first, second = ("schedule { step: 200 learning_rate: 0.01 }", "schedule { step: 2000 learning_rate: 0.001 }")
    path = "train_config.optimizer.rms_prop_optimizer.learning_rate.manual_step_learning_rate.schedule"
    assert notes("refused", replaced(EFFICIENTDET, (first, ""), (second, ""))) == {path: "is missing"}


# --- deprecated spellings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "meant"),
    [
        ("", "auto"),
        ("from_detection_checkpoint: true", "detection"),
        ("from_detection_checkpoint: false", "classification"),
        ("fine_tune_checkpoint_type: '' from_detection_checkpoint: true", "detection"),
        ("fine_tune_checkpoint_type: 'full' from_detection_checkpoint: true", "full"),
    ],
)
def test_checkpoint_type(fields, meant, config_of):
    text = replaced(FPNLITE, ('fine_tune_checkpoint_type: "detection"', fields))
    assert config_of(text).train.fine_tune_checkpoint_type == meant


def test_fields_of_train_config_are_read(with_train):
    # the removed type of CenterNet is the one that replaced it
    assert with_train("fine_tune_checkpoint_type: 'fine_tune'").train.fine_tune_checkpoint_type == "detection"
    fields = "freeze_variables: 'a' freeze_variables: 'b' update_trainable_variables: 'c' bias_grad_multiplier: 2"
    train = with_train(fields).train
    assert (train.freeze_variables, train.update_trainable_variables) == (("a", "b"), ("c",))
    assert train.bias_grad_multiplier == 2
    assert with_train("bias_grad_multiplier: 0").train.bias_grad_multiplier == 1
    assert with_train("gradient_clipping_by_norm: 0").train.gradient_clipping is None
    assert with_train("gradient_clipping_by_norm: 2").train.gradient_clipping == ClipByGlobalNorm(norm=2.0)


@pytest.mark.parametrize("version", ["", "fine_tune_checkpoint_version: V1", "fine_tune_checkpoint_version: 1"])
def test_tf1_checkpoint_is_refused(version, notes):
    text = replaced(FPNLITE, ("fine_tune_checkpoint_version: V2", version))
    ((path, reason),) = notes("refused", text).items()
    assert path == "train_config.fine_tune_checkpoint"
    assert "V1" in reason
    assert "fine_tune_checkpoint_version: V2" in reason


def test_checkpoint_version_is_ignored_without_a_checkpoint(config_of):
    text = replaced(
        FPNLITE, ('fine_tune_checkpoint: "start/ckpt-0"', ""), ("checkpoint_version: V2", "checkpoint_version: V1")
    )
    assert config_of(text).train.fine_tune_checkpoint == ""
