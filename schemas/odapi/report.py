"""What became of the fields of a file."""

from dataclasses import dataclass

from detloom.schemas.overrides import Located


@dataclass(frozen=True)
class FieldNote:
    """One field that a file sets.

    Attributes:
        path: as in the file, such as "train_config.data_augmentation_options[1].random_crop_image.min_area".
        where: "file:line".
        value: as written, but cut and without what may be a secret; "{}" for an empty message, "{...}" for one whose
            fields are listed behind it, "(missing)" for one that should be there.
        reason: where the value went, or why it is ignored or refused.
    """

    path: str
    where: str
    value: str
    reason: str


@dataclass(frozen=True)
class PipelineConfigReport:
    """A file's meaning: the plain tree of `TrainEvalConfig`, and each of its fields in one of three lists.

    The tree holds what was written and what the Object Detection API means by leaving it out, as far as the tree's
    own defaults differ. With refused fields it is not complete.
    """

    name: str
    located: Located
    mapped: tuple[FieldNote, ...]
    ignored: tuple[FieldNote, ...]
    refused: tuple[FieldNote, ...]
