"""Sources of our variables in the EfficientDet checkpoints of google/automl.

Its variables have names instead of object paths, and each has a moving average, which the released models use. Two
things differ: the anchors of a location are ordered by scale (here by aspect ratio), and box offsets do not have the
scale factors of the box coder.
"""

from collections.abc import Iterator

import keras
import numpy as np

from detloom.schemas.errors import InputError
from detloom.schemas.model.detector import FasterRcnnBoxCoder, MultiscaleAnchorGenerator, Ssd
from detloom.schemas.model.network import BiFpn, FeatureExtractor, WeightSharedConvolutionalBoxPredictor
from detloom.trainer_module.detectors.detector import AutomlSource
from detloom.trainer_module.layers.backbones.efficientnet import efficientnet_blocks
from detloom.trainer_module.layers.necks.bifpn import bifpn_nodes, is_backbone_feature


def automl_sources(config: Ssd, network: keras.Model) -> dict[str, AutomlSource]:
    """Return the source of each weight of `network`, including moving statistics, by "layer/variable".

    Raises:
        InputError: if a setting has no equivalent in google/automl.
    """
    _check_equal_meaning(config)
    layers = dict(_layer_names(config))
    sources = {}
    for layer in network.layers:
        for variable in layer.weights:
            assert layer.name in layers, f"the name of {layer.name} in google/automl is not known"
            attribute = "depthwise_kernel" if isinstance(layer, keras.layers.DepthwiseConv2D) else variable.name
            source = _source(config, layer.name, layers[layer.name], attribute, variable.shape)
            sources[f"{layer.name}/{variable.name}"] = source
    return sources


def _check_equal_meaning(config: Ssd) -> None:
    extractor, where = config.feature_extractor, "model.feature_extractor"
    neck, heads = extractor.neck, config.box_predictor
    if not isinstance(neck, BiFpn):
        raise _refusal(f"{where}.neck", type(neck).__name__, "BiFpn")
    if not isinstance(heads, WeightSharedConvolutionalBoxPredictor) or not heads.use_depthwise:
        raise _refusal("model.box_predictor", type(heads).__name__, "shared heads with use_depthwise: true")
    if heads.share_prediction_tower:
        raise _refusal("model.box_predictor.share_prediction_tower", "true", "false")
    if not isinstance(config.anchor_generator, MultiscaleAnchorGenerator):
        raise _refusal("model.anchor_generator", type(config.anchor_generator).__name__, "MultiscaleAnchorGenerator")
    if not isinstance(config.box_coder, FasterRcnnBoxCoder):
        raise _refusal("model.box_coder", type(config.box_coder).__name__, "FasterRcnnBoxCoder")
    if config.add_background_class:
        raise _refusal("model.add_background_class", "true", "false")
    if neck.combine_method == "attention":
        raise _refusal(f"{where}.neck.combine_method", "attention", "fast_attention or sum")
    is_smallest = extractor.backbone in ("efficientnet-b0", "efficientnet-lite0")  # both take the same blocks
    if not is_smallest and not neck.features_of_last_blocks:
        raise _refusal(f"{where}.neck.features_of_last_blocks", "false", f"true with {extractor.backbone}")


def _refusal(field: str, got: str, allowed: str) -> InputError:
    return InputError(f"{field}: got {got}, a checkpoint of google/automl needs {allowed}; change it.")


def _layer_names(config: Ssd) -> Iterator[tuple[str, str]]:
    """Yield our layer names and the names in google/automl."""
    yield from _backbone_names(config.feature_extractor)
    yield from _neck_names(config.feature_extractor)
    yield from _head_names(config)


def _backbone_names(config: FeatureExtractor) -> Iterator[tuple[str, str]]:
    root = config.backbone
    yield "stem_conv", f"{root}/stem/conv2d"
    yield "stem_bn", f"{root}/stem/tpu_batch_normalization"
    for index, block in enumerate(efficientnet_blocks(config)):
        there = f"{root}/blocks_{index}"
        convs, norms = ["project_conv"], ["bn", "project_bn"]
        if block.expansion > 1:
            convs, norms = ["expand_conv", *convs], ["expand_bn", *norms]
        squeeze = ["se_reduce", "se_expand"] if block.has_squeeze_and_excitation else []
        for part, kind, names in (
            ("", "conv2d", convs),
            ("", "tpu_batch_normalization", norms),
            ("se/", "conv2d", squeeze),
        ):
            for number, name in enumerate(names):
                yield f"{block.name}_{name}", f"{there}/{part}{kind}" + (f"_{number}" if number else "")
        yield f"{block.name}_dwconv", f"{there}/depthwise_conv2d"


def _neck_names(config: FeatureExtractor) -> Iterator[tuple[str, str]]:
    """Yield names of the neck. A cell is one iteration; its inputs are numbered before the nodes that it makes."""
    neck = config.neck
    assert isinstance(neck, BiFpn), neck
    num_levels = neck.max_level - neck.min_level + 1
    made = [node for node in bifpn_nodes(neck) if not node.name.startswith("0_")]
    nodes_a_cell = len(made) // neck.num_iterations
    yield "neck_0_up_6_input_0_conv", "resample_p6/conv2d"
    yield "neck_0_up_6_input_0_bn", "resample_p6/bn"
    for position, node in enumerate(made):
        cell, number = divmod(position, nodes_a_cell)
        name, there = f"neck_{node.name}", f"fpn_cells/cell_{cell}/fnode{number}"
        offset = num_levels + number
        yield f"{name}_combine", there
        yield f"{name}_conv", f"{there}/op_after_combine{offset}/conv"
        yield f"{name}_bn", f"{there}/op_after_combine{offset}/bn"
        for index, feature in enumerate(node.inputs):
            if is_backbone_feature(feature):
                source = int(feature.rpartition("_")[2]) - neck.min_level
                yield f"{name}_input_{index}_conv", f"{there}/resample_{index}_{source}_{offset}/conv2d"
                yield f"{name}_input_{index}_bn", f"{there}/resample_{index}_{source}_{offset}/bn"


def _head_names(config: Ssd) -> Iterator[tuple[str, str]]:
    neck, heads = config.feature_extractor.neck, config.box_predictor
    assert isinstance(neck, BiFpn), neck
    assert isinstance(heads, WeightSharedConvolutionalBoxPredictor), heads
    for ours, there in (("head_box_conv", "box_net/box"), ("head_class_conv", "class_net/class")):
        for index in range(heads.num_layers_before_predictor):
            yield f"{ours}_{index}", f"{there}-{index}"
            for level in range(neck.min_level, neck.max_level + 1):
                yield f"{ours}_{index}_level_{level}_bn", f"{there}-{index}-bn-{level}"
    yield "head_offsets", "box_net/box-predict"
    yield "head_classes", "class_net/class-predict"


def _source(config: Ssd, layer: str, there: str, attribute: str, shape: tuple[int, ...]) -> AutomlSource:
    if attribute == "bifpn_combine_weights":
        names = tuple(f"{there}/WSM" + (f"_{index}" if index else "") for index in range(shape[0]))
        return AutomlSource(names, lambda *weights: np.hstack(weights).astype(np.float32).reshape(-1, 1))
    name = (f"{there}/{attribute}",)
    if layer.startswith(("head_offsets", "head_classes")) and attribute != "depthwise_kernel":
        factors = _box_factors(config) if layer.startswith("head_offsets") else None
        return AutomlSource(name, lambda value: _reordered(config, value, factors))
    return AutomlSource(name, lambda value: value)


def _box_factors(config: Ssd) -> np.ndarray:
    coder = config.box_coder
    assert isinstance(coder, FasterRcnnBoxCoder), coder
    return np.array([coder.y_scale, coder.x_scale, coder.height_scale, coder.width_scale], np.float32)


def _reordered(config: Ssd, value: np.ndarray, factors: np.ndarray | None) -> np.ndarray:
    """Reorder the last axis from (scale, ratio, code) to (ratio, scale, code), and multiply each code by its factor.

    A value whose last axis does not match our anchors is returned unchanged; its shape then does not fit.
    """
    generator = config.anchor_generator
    assert isinstance(generator, MultiscaleAnchorGenerator), generator
    num_scales, num_ratios = generator.scales_per_octave, len(generator.aspect_ratios)
    num_codes, rest = divmod(value.shape[-1], num_scales * num_ratios) if value.ndim else (0, 1)
    if rest or (factors is not None and num_codes != len(factors)):
        return value
    by_scale = value.reshape(*value.shape[:-1], num_scales, num_ratios, num_codes)
    by_aspect = np.swapaxes(by_scale, -3, -2)
    return (by_aspect if factors is None else by_aspect * factors).reshape(value.shape)
