"""Feature keys of the tf.Example contract. They are the Object Detection API's, so its TFRecords can be used unchanged.

Source: https://github.com/tensorflow/models/blob/master/research/object_detection/core/standard_fields.py
(class TfExampleFields).
"""

IMAGE_ENCODED = "image/encoded"  # bytes, JPEG or PNG
IMAGE_FORMAT = "image/format"  # b"jpeg" or b"png"
IMAGE_HEIGHT = "image/height"  # int64, pixels
IMAGE_WIDTH = "image/width"  # int64, pixels
IMAGE_FILENAME = "image/filename"  # bytes, relative to the data folder
IMAGE_SOURCE_ID = "image/source_id"  # bytes, unique in the data set: COCO image id, VOC file stem
IMAGE_SHA256 = "image/key/sha256"  # bytes, hex digest of image/encoded

BOX_YMIN = "image/object/bbox/ymin"  # float32 [G], relative to the image, 0 to 1
BOX_XMIN = "image/object/bbox/xmin"
BOX_YMAX = "image/object/bbox/ymax"
BOX_XMAX = "image/object/bbox/xmax"
CLASS_ID = "image/object/class/label"  # int64 [G], label-map id, 1-based
CLASS_TEXT = "image/object/class/text"  # bytes [G], label-map name
IS_CROWD = "image/object/is_crowd"  # int64 [G], 0 or 1
AREA = "image/object/area"  # float32 [G], square pixels; area of the mask if the object has one
DIFFICULT = "image/object/difficult"  # int64 [G], 0 or 1
TRUNCATED = "image/object/truncated"  # int64 [G], 0 or 1
GROUP_OF = "image/object/group_of"  # int64 [G], 0 or 1: the box contains several objects that touch
IMAGE_CLASS_ID = "image/class/label"  # int64, classes verified by Open Images as present or absent; read only
WEIGHT = "image/object/weight"  # float32 [G], weight of the box in the losses; read, never written by ingestion
# Optional keys:
MASK = "image/object/mask"  # bytes [G], a grayscale PNG of the image's size; each pixel is 0 or 1
KEYPOINT_X = "image/object/keypoint/x"  # float32, relative to the image; all objects concatenated
KEYPOINT_Y = "image/object/keypoint/y"
KEYPOINT_VISIBILITY = "image/object/keypoint/visibility"  # int64: 0 not labelled, 1 hidden, 2 visible
NUM_KEYPOINTS = "image/object/keypoint/num"  # int64 [G], number of keypoints of each object

BOX_KEYS_YXYX = (BOX_YMIN, BOX_XMIN, BOX_YMAX, BOX_XMAX)

# Keys for which statistics are computed: all keys that ingestion writes except the encoded image.
STATISTICS_KEYS = (
    IMAGE_FORMAT,
    IMAGE_HEIGHT,
    IMAGE_WIDTH,
    IMAGE_FILENAME,
    IMAGE_SOURCE_ID,
    IMAGE_SHA256,
    *BOX_KEYS_YXYX,
    CLASS_ID,
    CLASS_TEXT,
    IS_CROWD,
    AREA,
    DIFFICULT,
    TRUNCATED,
    GROUP_OF,
)
