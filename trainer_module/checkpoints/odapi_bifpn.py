"""Where the Object Detection API's checkpoints hold the variables of the bidirectional feature pyramid.

By number of the node; of a node, by number of the input; of an input or of what follows the sum, by number of the
operation (1x1 convolution, batch norm, pooling; activation, convolution, batch norm).
"""

from detloom.schemas.network_config import BiFpn, FeatureExtractor
from detloom.trainer_module.necks.bifpn import bifpn_nodes, is_backbone_feature

_STAGE = "model/_feature_extractor/_bifpn_stage"


def bifpn_layer_keys(config: FeatureExtractor) -> dict[str, str]:
    """Object path by layer name, for layers that have weights."""
    assert isinstance(config.neck, BiFpn), config.neck
    keys = {}
    for number, node in enumerate(bifpn_nodes(config.neck)):
        name = f"neck_{node.name}"
        for index, feature in enumerate(node.inputs):
            if is_backbone_feature(feature):
                operations = f"{_STAGE}/node_input_blocks/{number}/{index}/1"
                keys[f"{name}_input_{index}_conv"] = f"{operations}/0"
                keys[f"{name}_input_{index}_bn"] = f"{operations}/1"
        if len(node.inputs) > 1:
            if config.neck.combine_method != "sum":
                keys[f"{name}_combine"] = f"{_STAGE}/node_combine_op/{number}"
            keys[f"{name}_conv"] = f"{_STAGE}/node_post_combine_block/{number}/1"
            if config.conv_hyperparams.batch_norm is not None:
                keys[f"{name}_bn"] = f"{_STAGE}/node_post_combine_block/{number}/2"
    return keys
