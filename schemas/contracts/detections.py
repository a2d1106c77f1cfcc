"""Names and meaning of the inputs and outputs of an exported model.

Detections are a dictionary with the output names of the Object Detection API (`exporter_main_v2.py`), for `B` images
and `M` = max_detections rows, in descending order of score and padded with zeros:

    detection_boxes    float32 [B, M, 4]  ymin, xmin, ymax, xmax relative to the image, 0 to 1; or in pixels of the
                                          image, if the contract in the assets says so
    detection_scores   float32 [B, M]     0 to 1
    detection_classes  float32 [B, M]     label-map id (1-based; 0 only in padding)
    num_detections     float32 [B]        number of rows that are not padding

Some detectors have more outputs, for masks of `h` x `w` cells and for `P` keypoints:

    detection_masks            float32 [B, M, h, w]  probability that a cell of the box is object
    detection_keypoints        float32 [B, M, P, 2]  y, x relative to the image, or in pixels, like the boxes
    detection_keypoint_scores  float32 [B, M, P]     0 to 1; 0 for all points of a class without keypoints

Code that passes detections on handles every output that it finds. Without padding, detections of one image are a
dictionary without `num_detections`, whose classes are int64.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Output:
    """One output of an exported model.

    Attributes:
        shape: `B` and `M` as above, and sizes.
        meaning: for the contract; `{box_units}` is replaced.
        is_required: whether every detector has it.
    """

    shape: tuple[str | int, ...]
    meaning: str
    dtype: str = "float32"
    is_required: bool = True


BOXES = "detection_boxes"
SCORES = "detection_scores"
CLASSES = "detection_classes"
NUM_DETECTIONS = "num_detections"
MASKS = "detection_masks"
KEYPOINTS = "detection_keypoints"
KEYPOINT_SCORES = "detection_keypoint_scores"

# Names of signatures of the SavedModel, and the name of the single input of each.
SIGNATURE_IMAGES = "serving_default"  # input_tensor: uint8 [B, H, W, 3]
SIGNATURE_ENCODED = "serving_encoded"  # image_bytes: string [B], JPEG or PNG
SIGNATURE_EXAMPLES = "serving_examples"  # examples: string [B], serialized tf.Example with image/encoded
SIGNATURE_INPUTS = {
    SIGNATURE_IMAGES: "input_tensor",
    SIGNATURE_ENCODED: "image_bytes",
    SIGNATURE_EXAMPLES: "examples",
}

# Outputs of a TFLite or ONNX model that leaves non-maximum suppression to its caller: [1, A, 4] boxes as above, but of
# all anchors and relative to the network input, and [1, A, K] scores of the classes in the order of the label map.
RAW_BOXES = "raw_detection_boxes"
RAW_SCORES = "raw_detection_scores"

# Folders and files of an exported model; assets are in its folder `assets/`.
SERVING_FOLDER = "Format-Serving"  # SavedModel in a TFX Model artifact
TFLITE_FOLDER = "Format-TFLite"  # TFLite variants, `<name>.tflite`
TFLITE_PROBLEM_FILE = "problem.txt"  # in this folder: why the model cannot be converted; it is not blessed then
ONNX_FILE = "model.onnx"  # beside saved_model.pb
TFLITE_SUFFIX = ".tflite"
TFLITE_INT8 = "int8"  # name of the variant with 8-bit weights and activations
SAVED_MODEL_FILE = "saved_model.pb"
ASSET_LABEL_MAP = "label_map.pbtxt"
ASSET_CONFIG = "config.json"
ASSET_CONTRACT = "contract.json"  # inputs, outputs, units and versions, for callers of the model
MANIFEST_FILE = "assets.extra/push_manifest.json"  # of a pushed version, see components/pusher/manifest.py
WARM_UP_FILE = "assets.extra/tf_serving_warmup_requests"  # where TensorFlow Serving looks for them

OUTPUTS = {
    BOXES: Output(("B", "M", 4), "ymin, xmin, ymax, xmax, {box_units}"),
    SCORES: Output(("B", "M"), "0 to 1, in descending order"),
    CLASSES: Output(("B", "M"), f"ids of {ASSET_LABEL_MAP}; 0 in padding"),
    NUM_DETECTIONS: Output(("B",), "number of rows that are not padding"),
    MASKS: Output(("B", "M", "h", "w"), "probability that a cell of the box is object, 0 to 1", is_required=False),
    KEYPOINTS: Output(("B", "M", "P", 2), "y, x, {box_units}", is_required=False),
    KEYPOINT_SCORES: Output(("B", "M", "P"), "0 to 1; 0 for a class without keypoints", is_required=False),
}
RAW_OUTPUTS = {
    RAW_BOXES: Output(("B", "A", 4), "ymin, xmin, ymax, xmax relative to the network input"),
    RAW_SCORES: Output(("B", "A", "K"), "0 to 1"),
}
RAW_OUTPUT_NAMES = tuple(RAW_OUTPUTS)
OUTPUT_NAMES = tuple(name for name, output in OUTPUTS.items() if output.is_required)
