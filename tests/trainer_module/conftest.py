"""Configurations for the tests: a detector that trains in seconds, the zoo's, and `changed` for variants."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from three_layer_backbone import DEPTH_MULTIPLIER, three_layer_backbone

from detloom.schemas.model.augmentations import RandomHorizontalFlip
from detloom.schemas.model.center_net import (
    CenterNet,
    CenterNetFeatureExtractor,
    ObjectCenterParams,
    ObjectDetection,
    PredictionHeadParams,
)
from detloom.schemas.model.config import Eval, InputReader, Monitoring, Train, TrainEvalConfig
from detloom.schemas.model.detector import MultiscaleAnchorGenerator, Ssd
from detloom.schemas.model.losses import Loss, PenaltyReducedFocal, SigmoidFocal, WeightedL1, WeightedSmoothL1
from detloom.schemas.model.network import (
    BatchNorm,
    ConvHyperparams,
    FeatureExtractor,
    FixedShapeResizer,
    Fpn,
    KeepAspectRatioResizer,
    L2Regularizer,
    VarianceScalingInitializer,
    WeightSharedConvolutionalBoxPredictor,
)
from detloom.schemas.model.non_max_suppression import BatchNonMaxSuppression, PostProcessing
from detloom.schemas.model.optimizers import (
    AdamWOptimizer,
    ClipByGlobalNorm,
    CosineDecayLearningRate,
    MovingAverage,
)
from detloom.schemas.presets.presets import find_preset


@pytest.fixture(scope="session", autouse=True)
def _three_layer_backbone() -> Iterator[None]:
    with three_layer_backbone():
        yield


@pytest.fixture
def eager() -> Iterator[None]:
    """Execute every `tf.function` of the test eagerly, because compilation would take most of the time."""
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


@pytest.fixture(scope="session")
def write_arrays() -> Callable[..., str]:
    """`write_arrays(path, arrays)` writes arrays by key as tf.train.Checkpoint does and returns the path as text."""
    import tensorflow as tf
    from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

    def write(path: Path, arrays: dict[str, Any], graph: TrackableObjectGraph | None = None) -> str:
        graph = TrackableObjectGraph(nodes=[{}]) if graph is None else graph
        stored = {**arrays, "_CHECKPOINTABLE_OBJECT_GRAPH": graph.SerializeToString()}
        path.parent.mkdir(parents=True, exist_ok=True)
        tensors, slices = [tf.constant(array) for array in stored.values()], [""] * len(stored)
        tf.raw_ops.SaveV2(prefix=str(path), tensor_names=list(stored), shape_and_slices=slices, tensors=tensors)
        return str(path)

    return write


@pytest.fixture(scope="session")
def make_squares(make_example: Callable[..., bytes]) -> Callable[..., list[bytes]]:
    """`make_squares(4)` makes images with a square; classes 1 and 2 take turns. A mask is the left half of a square."""

    def make(count: int, *, have_masks: bool = False, prefix: str = "") -> list[bytes]:
        examples = []
        for i, (y, x) in enumerate(np.random.default_rng(0).uniform(0, 0.4, (count, 2))):
            mask = np.zeros((64, 64), np.uint8)
            mask[int(64 * y) : int(64 * y) + 32, int(64 * x) : int(64 * x) + 16] = 1
            box = (y, x, y + 0.5, x + 0.5)
            masks = [mask] if have_masks else []
            examples.append(make_example([box], [1 + i % 2], name=f"{prefix}{i}", masks=masks))
        return examples

    return make


@pytest.fixture(scope="session")
def one_level_config(tiny_config: TrainEvalConfig, changed: Callable[..., Any]) -> TrainEvalConfig:
    """`tiny_config` with one convolution before one pyramid level: the fastest detector for training steps."""
    return changed(tiny_config, {"model.feature_extractor.neck.max_level": 3, "model.anchor_generator.max_level": 3})


@pytest.fixture(scope="session")
def small_config(tiny_config: TrainEvalConfig, changed: Callable[..., Any]) -> TrainEvalConfig:
    """`tiny_config` with a real, thin MobileNetV2: for tests in which the network matters, and for other processes."""
    extractor = "model.feature_extractor"
    return changed(tiny_config, {f"{extractor}.depth_multiplier": 0.1, f"{extractor}.neck.additional_layer_depth": 160})


@pytest.fixture(scope="session")
def tiny_config() -> TrainEvalConfig:
    """A detector with a backbone of three layers, see `three_layer_backbone`, and a training run of six steps."""
    hyperparams = ConvHyperparams(
        regularizer=L2Regularizer(weight=0.0),
        initializer=VarianceScalingInitializer(),
        activation="RELU_6",
        batch_norm=BatchNorm(decay=0.9, scale=True),
    )
    model = Ssd(
        image_resizer=FixedShapeResizer(height=64, width=64),
        feature_extractor=FeatureExtractor(
            backbone="mobilenet_v2",
            neck=Fpn(min_level=3, max_level=5, additional_layer_depth=128),  # times 0.125: 16 channels
            conv_hyperparams=hyperparams,
            depth_multiplier=DEPTH_MULTIPLIER,
            min_depth=8,
            use_depthwise=True,
            override_base_feature_extractor_hyperparams=True,
        ),
        anchor_generator=MultiscaleAnchorGenerator(min_level=3, max_level=5, aspect_ratios=(1.0,), scales_per_octave=1),
        box_predictor=WeightSharedConvolutionalBoxPredictor(
            conv_hyperparams=hyperparams,
            depth=16,
            num_layers_before_predictor=1,
            class_prediction_bias_init=-4.6,
            share_prediction_tower=True,
            use_depthwise=True,
        ),
        loss=Loss(classification_loss=SigmoidFocal(alpha=0.25), localization_loss=WeightedSmoothL1()),
        post_processing=PostProcessing(
            batch_non_max_suppression=BatchNonMaxSuppression(
                score_threshold=0.001, max_detections_per_class=10, max_total_detections=10
            ),
            score_converter="SIGMOID",
        ),
        normalize_loc_loss_by_codesize=True,
        add_background_class=False,
    )
    rate = CosineDecayLearningRate(learning_rate_base=2e-3, total_steps=6, warmup_learning_rate=0.0, warmup_steps=2)
    train = Train(
        batch_size=2,
        num_steps=6,
        steps_per_call=2,
        optimizer=AdamWOptimizer(learning_rate=rate),
        gradient_clipping=ClipByGlobalNorm(norm=10.0),
        moving_average=MovingAverage(decay=0.5, dynamic=False),
        augmentations=(RandomHorizontalFlip(),),
        monitoring=Monitoring(num_images=0),
    )
    return TrainEvalConfig(
        model=model,
        train=train,
        eval=Eval(batch_size=2, evaluate_every=4, use_moving_averages=True),
        train_input=InputReader(max_number_of_boxes=4),
    )


@pytest.fixture(scope="session")
def zoo_config() -> TrainEvalConfig:
    """The configuration of the Object Detection API's values in `reference_dir`."""
    return find_preset("ssd_mobilenet_v2_fpnlite_320x320").config


@pytest.fixture(scope="session")
def center_net_reference() -> dict[str, np.ndarray]:
    """The Object Detection API's values for `center_net_configs`; array names start with the configuration's name."""
    with np.load(Path(__file__).parent / "reference_values" / "center_net_reference.npz") as file:
        return dict(file)


@pytest.fixture(scope="session")
def center_net_configs() -> dict[str, CenterNet]:
    """One configuration with the zoo's settings and one with other values everywhere; both for small images."""
    resizer = KeepAspectRatioResizer(min_dimension=96, max_dimension=96, pad_to_max_dimension=True)
    usual = CenterNet(
        image_resizer=resizer,
        feature_extractor=CenterNetFeatureExtractor(backbone="resnet50_v1"),
        object_detection_task=ObjectDetection(localization_loss=WeightedL1()),
        object_center_params=ObjectCenterParams(classification_loss=PenaltyReducedFocal(), max_box_predictions=20),
    )
    other = CenterNet(
        image_resizer=resizer,
        feature_extractor=CenterNetFeatureExtractor(
            backbone="mobilenet_v2",
            channel_means=(10.0, 5.0, 2.0),
            channel_stds=(1.25, 1.0, 0.75),
            bgr_ordering=True,
            depth_multiplier=0.35,
            use_separable_conv=True,
            upsampling_interpolation="bilinear",
        ),
        object_detection_task=ObjectDetection(
            localization_loss=WeightedL1(),
            task_loss_weight=0.5,
            offset_loss_weight=2.0,
            scale_loss_weight=0.3,
            scale_head_params=PredictionHeadParams(num_filters=(16,), kernel_sizes=(3,)),
            offset_head_params=PredictionHeadParams(num_filters=(8,), kernel_sizes=(5,)),
        ),
        object_center_params=ObjectCenterParams(
            classification_loss=PenaltyReducedFocal(alpha=1.5, beta=3.0),
            object_center_loss_weight=1.5,
            min_box_overlap_iou=0.5,
            max_box_predictions=20,
            peak_max_pool_kernel_size=5,
            center_head_params=PredictionHeadParams(num_filters=(24, 16), kernel_sizes=(3, 1)),
        ),
        use_depthwise=True,
    )
    return {"resnet50": usual, "mobilenet_v2": other}


@pytest.fixture(scope="session")
def center_net_raw() -> dict[str, np.ndarray]:
    """Artificial outputs of those networks for two images, the reference's input for losses and detections."""
    random = np.random.default_rng(1)
    return {
        "class_logits_BHWK": (random.standard_normal((2, 24, 24, 5)) * 2 - 2).astype(np.float32),
        "sizes_BHW2": (random.standard_normal((2, 24, 24, 2)) * 4 + 4).astype(np.float32),
        "offsets_BHW2": random.uniform(0, 1, (2, 24, 24, 2)).astype(np.float32),
    }


@pytest.fixture(scope="session")
def center_net_truth() -> dict[str, np.ndarray]:
    """The ground truth of those two images: overlapping boxes of a class, a tiny one, one up to the edge, padding."""
    boxes = [
        [[0.1, 0.2, 0.5, 0.6], [0.12, 0.2, 0.5, 0.58], [0.6, 0.6, 0.64, 0.7], [0.3, 0.1, 0.75, 1.0]],
        [[0.0, 0.0, 0.75, 0.4], [0.2, 0.5, 0.21, 0.51], [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]],
    ]
    return {
        "boxes_yxyx_rel": np.array(boxes, np.float32),
        "class_indices": np.array([[0, 0, 3, 4], [2, 1, -1, -1]], np.int32),
        "true_hw": np.array([[72, 96], [60, 96]], np.int32),
    }


@pytest.fixture(scope="session")
def changed() -> Callable[[Any, dict[str, Any]], Any]:
    """`changed(config, {"train.batch_size": 4, "eval.batch_size": 1})` is a copy with other values at these paths."""

    def change(config: Any, settings: dict[str, Any]) -> Any:
        new: dict[str, Any] = {}
        deeper: dict[str, dict[str, Any]] = {}
        for path, value in settings.items():
            first, _, rest = path.partition(".")
            if rest:
                deeper.setdefault(first, {})[rest] = value
            else:
                new[first] = value
        return replace(config, **new, **{name: change(getattr(config, name), below) for name, below in deeper.items()})

    return change


@pytest.fixture(scope="session")
def assert_onnx_file_detects() -> Callable[..., None]:
    """`assert_onnx_file_detects(detector, path, settings)` gives the network random kernels, so that scores differ.
    The file is written for two images of one size, and called with other numbers of images of other sizes.
    """
    import tensorflow as tf

    from detloom.schemas.contracts.detections import NUM_DETECTIONS
    from detloom.trainer_module.export import onnx_export
    from detloom.trainer_module.export.servable import Servable, share_matched

    def make_images(num: int, height: int, width: int) -> np.ndarray:
        small = np.random.default_rng(num).integers(0, 256, (num, height // 5 + 1, width // 5 + 1, 3), np.uint8)
        return small.repeat(5, axis=1).repeat(5, axis=2)[:, :height, :width]

    def check(detector: Any, path: Path, settings: Any) -> None:
        random = np.random.default_rng(0)
        for variable in detector.network.trainable_variables:
            if "kernel" in variable.path:
                variable.assign(random.normal(0, 2 * np.prod(variable.shape[:-1]) ** -0.5, variable.shape))
        servable = Servable(detector, settings)

        def expected_for(images: np.ndarray) -> dict[str, np.ndarray]:
            return servable.to_relative(servable.from_images(tf.constant(images)), images.shape[1:3])

        first = make_images(2, 80, 90)
        onnx_export.export_onnx(servable, first, expected_for(first), path)
        session = onnx_export.load_session(path.read_bytes())
        for images in (first, make_images(1, 130, 60), make_images(3, 64, 64)):
            expected = expected_for(images)
            assert expected[NUM_DETECTIONS].all()
            found = servable.to_relative(onnx_export.run(session, images), images.shape[1:3])
            assert set(found) == set(expected)
            assert share_matched(expected, found) >= 0.95

    return check


@pytest.fixture(scope="session")
def make_spread_detector() -> Callable[..., Any]:
    """Build a detector whose class scores differ clearly, so that rounding does not change their order."""

    def make(model: Any, label_map: Any) -> Any:
        import keras

        from detloom.trainer_module.detectors.families import build_detector

        keras.utils.set_random_seed(0)
        detector = build_detector(model, label_map)
        random = np.random.default_rng(0)
        for variable in detector.network.trainable_variables:
            is_of_head = "head_class" in variable.path or "head_size" in variable.path
            if is_of_head and "kernel" in variable.path:
                variable.assign(random.normal(0, 0.5, variable.shape))
        return detector

    return make
