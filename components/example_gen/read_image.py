"""Read the image of one record from an image file or from an existing tf.Example."""

from detloom.components.example_gen.build_example import SourceImage
from detloom.components.example_gen.data_folder import DataFolder, SourceError
from detloom.components.example_gen.sources.source_record import SourceRecord
from detloom.schemas.contracts import example_keys as keys
from detloom.schemas.contracts.rejects import Reason

# Keys that ingestion computes; all other features of an existing tf.Example are copied.
_OWN_KEYS = frozenset(
    (
        keys.IMAGE_ENCODED, *keys.STATISTICS_KEYS, keys.MASK,
        keys.KEYPOINT_X, keys.KEYPOINT_Y, keys.KEYPOINT_VISIBILITY, keys.NUM_KEYPOINTS,
    )
)  # fmt: skip


def read_image(record: SourceRecord, folder: DataFolder, max_bytes: int) -> SourceImage:
    """Read the image of a record as it is stored.

    Raises:
        SourceError: if that fails.
    """
    if record.example_at is None:
        return SourceImage(folder.read_bytes(record.image_path, max_bytes), record.image_path)
    offset, length = record.example_at
    if length > max_bytes:
        raise SourceError(Reason.RECORD_TOO_LARGE, f"a record of {length} bytes, allowed: {max_bytes}")
    from detloom.trainer_module.data.records import parse_features  # late, because it imports TensorFlow

    data = folder.read_part(record.image_path, offset, length)
    try:
        features = parse_features(data)
    except ValueError:
        raise SourceError(Reason.UNREADABLE_ANNOTATION, "not a tf.Example") from None
    encoded = features[keys.IMAGE_ENCODED].bytes_list.value
    if len(encoded) != 1:
        raise SourceError(Reason.NOT_AN_IMAGE, f"{len(encoded)} values of {keys.IMAGE_ENCODED}, allowed: 1")
    named = features[keys.IMAGE_FILENAME].bytes_list.value
    file_name = named[0].decode("utf-8", "replace") if named else record.record_key
    others = {key: feature for key, feature in features.items() if key not in _OWN_KEYS}
    num_objects = len(features[keys.BOX_XMIN].float_list.value)
    return SourceImage(encoded[0], file_name, others, num_objects, is_upright=True)
