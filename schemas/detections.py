"""Names and meaning of what an exported model takes and returns.

Outputs have the Object Detection API's names (`exporter_main_v2.py`), for `B` images and `M` = max_detections rows,
sorted by descending score and padded with zeros:

    detection_boxes    float32 [B, M, 4]  ymin, xmin, ymax, xmax relative to the image, 0 to 1; or in its pixels, where
                                          the contract in the assets says so
    detection_scores   float32 [B, M]     0 to 1
    detection_classes  float32 [B, M]     label-map id (1-based; 0 only in padding)
    num_detections     float32 [B]        rows that are not padding
"""

BOXES = "detection_boxes"
SCORES = "detection_scores"
CLASSES = "detection_classes"
NUM_DETECTIONS = "num_detections"
OUTPUT_NAMES = (BOXES, SCORES, CLASSES, NUM_DETECTIONS)

# Signature names of the SavedModel, and the name of the single input of each.
SIGNATURE_IMAGES = "serving_default"  # input_tensor: uint8 [B, H, W, 3]
SIGNATURE_ENCODED = "serving_encoded"  # image_bytes: string [B], JPEG or PNG
SIGNATURE_EXAMPLES = "serving_examples"  # examples: string [B], serialized tf.Example with image/encoded
SIGNATURE_INPUTS = {
    SIGNATURE_IMAGES: "input_tensor",
    SIGNATURE_ENCODED: "image_bytes",
    SIGNATURE_EXAMPLES: "examples",
}

# What a TFLite model answers instead that leaves suppression to others: [1, A, 4] boxes as above but of all anchors,
# relative to the network's input, and [1, A, K] scores of the classes in the label map's order.
RAW_BOXES = "raw_detection_boxes"
RAW_SCORES = "raw_detection_scores"
RAW_OUTPUT_NAMES = (RAW_BOXES, RAW_SCORES)

# Folders and files of an exported model; the assets lie in its `assets/`.
SERVING_FOLDER = "Format-Serving"  # where a TFX Model artifact keeps its SavedModel
TFLITE_FOLDER = "Format-TFLite"  # where it keeps its TFLite variants, one `<name>.tflite` each
ONNX_FOLDER = "Format-ONNX"  # where it keeps its ONNX file
ONNX_FILE = "model.onnx"
TFLITE_SUFFIX = ".tflite"
TFLITE_INT8 = "int8"  # name of the variant with 8-bit weights and activations
SAVED_MODEL_FILE = "saved_model.pb"
ASSET_LABEL_MAP = "label_map.pbtxt"
ASSET_CONFIG = "config.json"
ASSET_CONTRACT = "contract.json"  # inputs, outputs, units and versions, for whoever calls the model
WARM_UP_FILE = "assets.extra/tf_serving_warmup_requests"  # where TensorFlow Serving looks for them
