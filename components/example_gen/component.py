"""Define DetectionExampleGen, the TFX component."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from tfx.dsl.components.base.base_beam_component import BaseBeamComponent
from tfx.dsl.components.base.executor_spec import BeamExecutorSpec
from tfx.orchestration.data_types import RuntimeParameter
from tfx.proto import example_gen_pb2, range_config_pb2
from tfx.types import Channel, standard_artifacts, standard_component_specs
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter

from detloom.components.artifact_types import Rejects
from detloom.components.example_gen.driver import Driver, file_pattern, split_input_base
from detloom.components.example_gen.executor import EXAMPLES_KEY, Executor
from detloom.components.example_gen.params import AUTO, ExampleGenParams
from detloom.components.fingerprints import source_fingerprint
from detloom.components.properties import REJECTS_KEY
from detloom.components.similarity.near_duplicates import DEFAULT_MAX_DISTANCE
from detloom.schemas.errors import InputError

_PROPERTY_TYPES = {name: type(value) for name, value in ExampleGenParams().to_properties().items()}


class DetectionExampleGenSpec(ComponentSpec):
    """The parameters of TFX's file-based driver, and our own."""

    PARAMETERS: ClassVar[dict[str, ExecutionParameter]] = {
        **standard_component_specs.FileBasedExampleGenSpec.PARAMETERS,
        **{name: ExecutionParameter(type=kind) for name, kind in _PROPERTY_TYPES.items()},
    }
    INPUTS: ClassVar[dict[str, ChannelParameter]] = {}
    OUTPUTS: ClassVar[dict[str, ChannelParameter]] = {
        EXAMPLES_KEY: ChannelParameter(type=standard_artifacts.Examples),
        REJECTS_KEY: ChannelParameter(type=Rejects),
    }


class DetectionExampleGen(BaseBeamComponent):
    """A TFX component that converts labelled images to tf.Examples: one folder per split, and the label map.

    Outputs:
        examples: TFRecord shards, plain or GZIP, and `label_map.pbtxt`.
        rejects: every rejected record and box with its reason, and the counts.
    """

    SPEC_CLASS = DetectionExampleGenSpec
    EXECUTOR_SPEC = BeamExecutorSpec(Executor)
    DRIVER_CLASS = Driver

    def __init__(
        self,
        input_base: str,
        *,
        data_format: str = AUTO,
        splits: Mapping[str, str] | None = None,
        split_ratios: Mapping[str, float] | None = None,
        source: str = "",
        split_group: str = "",
        split_stratify: bool = False,
        split_seed: int = 0,
        separate_near_duplicates: bool = False,
        max_distance: int = DEFAULT_MAX_DISTANCE,
        images_dir: str = "",
        hierarchy_file: str = "",
        with_masks: bool = False,
        with_keypoints: bool = False,
        class_names: Sequence[str] = (),
        unknown_class: str = "fail",
        shard_max_bytes: int = 128 * 2**20,
        gzip: bool = False,
        max_pixels: int = 100_000_000,
        max_image_bytes: int = 64 * 2**20,
        max_boxes: int = 10_000,
        decode_images: bool = False,
        exif_rotation: str = "rotate",
        num_spans: int = 1,
        max_reject_fraction: float = 0.05,
        range_config: range_config_pb2.RangeConfig | RuntimeParameter | None = None,
    ) -> None:
        """Create the component. `ExampleGenParams` documents the other arguments.

        Args:
            input_base: the data folder; it may contain {SPAN} and {VERSION}, of which the latest is used.
            data_format: one of `FORMATS`, such as "coco", "voc" or "yolo", or "auto".
            splits: source by output split; see docs/ingestion.md for the sources of each format.
            split_ratios: share by output split, instead of `splits`. With neither, the data set's own splits are used.
            range_config: selects another span than the latest (`static_range` with equal start and end).

        Raises:
            InputError: an argument is out of range, or arguments exclude each other.
        """
        params = ExampleGenParams(
            data_format=data_format,
            splits=splits or {},
            split_ratios=split_ratios or {},
            source=source,
            split_group=split_group,
            split_stratify=split_stratify,
            split_seed=split_seed,
            separate_near_duplicates=separate_near_duplicates,
            max_distance=max_distance,
            images_dir=images_dir,
            hierarchy_file=hierarchy_file,
            with_masks=with_masks,
            with_keypoints=with_keypoints,
            class_names=tuple(class_names),
            unknown_class=unknown_class,
            shard_max_bytes=shard_max_bytes,
            gzip=gzip,
            max_pixels=max_pixels,
            max_image_bytes=max_image_bytes,
            max_boxes=max_boxes,
            decode_images=decode_images,
            exif_rotation=exif_rotation,
            num_spans=num_spans,
            max_reject_fraction=max_reject_fraction,
            code_fingerprint=source_fingerprint(__name__),
        )
        base, rest = split_input_base(input_base)
        if params.num_spans > 1 and not rest:
            raise InputError(
                f"num_spans: got {params.num_spans} for {input_base!r}, allowed: 1 for a path without {{SPAN}}."
            )
        patterns = [example_gen_pb2.Input.Split(name="data", pattern=file_pattern(rest))]
        super().__init__(
            spec=DetectionExampleGenSpec(
                input_base=base,
                input_config=example_gen_pb2.Input(splits=patterns),
                output_config=example_gen_pb2.Output(),
                output_data_format=example_gen_pb2.PayloadFormat.FORMAT_TF_EXAMPLE,
                output_file_format=example_gen_pb2.FileFormat.FORMAT_TFRECORDS_GZIP,
                range_config=range_config,
                examples=Channel(type=standard_artifacts.Examples),
                rejects=Channel(type=Rejects),
                **params.to_properties(),
            )
        )
