"""The public functions of `detloom`: detect, train, evaluate, run, as the commands of these names do.

docs/python_api.md describes them; tests/public_api.txt records their signatures.
"""

import io
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt
from PIL import Image

from detloom.components.storage.storage import is_address
from detloom.pipelines.predict.image_files import ImageFile, prepare_image
from detloom.pipelines.predict.score_threshold import recommended_score
from detloom.schemas.contracts.runtime_names import RuntimeName
from detloom.schemas.errors import InputError
from detloom.schemas.model.strategy import Strategy, StrategyKind
from detloom.schemas.reading.overrides import KeyPath, Located, nest, split_key
from detloom.schemas.reading.redact import redact
from detloom.schemas.run_file.evaluator import EvaluatorSettings
from detloom.schemas.run_file.gates import Gates

if TYPE_CHECKING:
    from detloom.components.dataset_validator.statistics.model_input import ModelInput
    from detloom.components.evaluator.evaluation_result import EvaluationResult
    from detloom.schemas.contracts.label_map import LabelMap
    from detloom.trainer_module.inference.prediction import Prediction
    from detloom.trainer_module.inference.runtime import Runtime
    from detloom.trainer_module.run_state.train_result import TrainResult

PathLike = str | os.PathLike[str]
ImageLike = str | os.PathLike[str] | bytes | Image.Image | npt.NDArray[np.uint8]
"""A path, an encoded JPEG or PNG, a Pillow image, or an array uint8 [H, W, 3] (RGB) or [H, W] (gray)."""


class LoadedDetector:
    """An exported model that detects objects in images of any kind. `load_detector` makes it."""

    def __init__(self, model_dir: Path, label_map: "LabelMap", runtime: "Runtime") -> None:
        self._model_dir, self._label_map, self._runtime = model_dir, label_map, runtime

    @property
    def label_map(self) -> "LabelMap":
        """The classes: ids and names."""
        return self._label_map

    @property
    def recommended_score(self) -> float:
        """The minimum score of `detloom predict` and `serve`: that with the best F1 in the model card, else 0.5."""
        return recommended_score(self._model_dir)

    @overload
    def predict(  # type: ignore[overload-overlap]  # a text is a path, not a sequence of letters
        self, images: ImageLike, *, batch_size: int = 8
    ) -> "Prediction": ...
    @overload
    def predict(self, images: Sequence[ImageLike], *, batch_size: int = 8) -> "list[Prediction]": ...
    def predict(
        self, images: ImageLike | Sequence[ImageLike], *, batch_size: int = 8
    ) -> "Prediction | list[Prediction]":
        """Detect objects in one image, or in each image of a list or tuple.

        Files and encoded images with an EXIF orientation are rotated upright first, as in ingestion.

        Args:
            images: see `ImageLike`.
            batch_size: largest number of images that the model gets at once.

        Returns:
            The prediction of one image, or a list of them in the order of the images.

        Raises:
            InputError: an image cannot be read, is larger than 50 million pixels, or is of another type.
        """
        from detloom.pipelines.predict.predict_files import predict_in_batches

        is_many = isinstance(images, list | tuple)
        given: Iterable[Any] = images if is_many else [images]  # type: ignore[assignment]
        named = (_GivenImage(image, f"images[{place}]" if is_many else "image") for place, image in enumerate(given))
        predictions = []
        for _, prediction in predict_in_batches(self._runtime, self._label_map, named, batch_size):
            if isinstance(prediction, InputError):
                raise prediction
            predictions.append(prediction)
        return predictions if is_many else predictions[0]


def load_detector(model: PathLike, *, runtime: RuntimeName = "auto") -> LoadedDetector:
    """Load an exported model: its folder, a Model artifact of TFX, or the highest version in a folder of versions.

    Args:
        runtime: "auto" takes "onnxruntime" if the version has a `model.onnx` that was evaluated and the machine has no
            GPU of NVIDIA, else "tensorflow", and logs which.

    Raises:
        InputError: with the folder and what is missing.
    """
    from detloom.trainer_module.inference.choose_runtime import load_runtime
    from detloom.trainer_module.inference.model_files import find_saved_model, read_exported_label_map

    model_dir = find_saved_model(_local(model))
    label_map = read_exported_label_map(str(model_dir))
    return LoadedDetector(model_dir, label_map, load_runtime(model_dir, runtime))


def train(
    source: PathLike,
    examples: PathLike,
    out: PathLike,
    *,
    train_split: str = "train",
    eval_split: str = "",
    label_map: PathLike | None = None,
    overrides: Mapping[str, Any] | None = None,
    strategy: StrategyKind | None = None,
    export: bool = True,
) -> "TrainResult":
    """Train a detector with regular evaluations, or resume the training run in `out`; export the best weights.

    Args:
        source: a run file, a `pipeline.config`, a `config.json`, or the name of a preset.
        examples: folder that `detloom ingest` or DetectionExampleGen wrote.
        out: folder of the training run; the exported model is in its folder `model`.
        eval_split: default: eval, val, valid or validation.
        label_map: default: that of the examples.
        overrides: values by key, such as {"train.num_steps": 2000}, in place of those of `source`.
        strategy: devices to train on; None uses those available.
        export: False leaves out the exported model.

    Returns:
        The result: `best` has the COCO metrics of the best weights, `best_step` their step, `detector` the network.

    Raises:
        InputError: the settings or the data do not fit, or another process trains in `out`.
        Preempted: a signal, such as Ctrl-C, stopped the training run; the same call resumes it.
    """
    from detloom.pipelines.find_examples import find_examples
    from detloom.schemas.contracts.label_map import read_label_map
    from detloom.schemas.run_file.read_config import read_training_config
    from detloom.trainer_module.train_and_export import train_and_export

    config = read_training_config(os.fspath(source), read_overrides(overrides))
    found = find_examples(_local(examples), train_split, eval_split)
    classes = read_label_map(Path(label_map or found.label_map_file))
    result, _ = train_and_export(
        config, classes, found.train_files, found.eval_files, _local(out), strategy, export=export
    )
    return result


def trainer_config(
    source: PathLike,
    *,
    overrides: Mapping[str, Any] | None = None,
    label_map: PathLike | None = None,
    strategy: StrategyKind | None = None,
) -> dict[str, str]:
    """Return the `custom_config` of TFX's Trainer with `run_fn="detloom.trainer_module.run_fn"`.

    It holds the configuration, not paths, and the fingerprint of the training code, so that TFX's cache sees changes.
    The number of steps is that of the configuration, `train.num_steps`; that of the Trainer's `train_args` is not read.

    Args:
        source, overrides: as for `train`.
        label_map: for examples without `label_map.pbtxt`, such as those of TFX's ImportExampleGen; it is read now.
        strategy: devices to train on; None uses those available.

    Raises:
        InputError: the configuration or the label map cannot be read.
    """
    from detloom.pipelines.dag.training_nodes import training_settings
    from detloom.schemas.contracts.label_map import format_label_map, read_label_map
    from detloom.schemas.run_file.read_config import read_training_config
    from detloom.trainer_module.tfx_run import LABEL_MAP_KEY

    config = read_training_config(os.fspath(source), read_overrides(overrides))
    settings = training_settings(config, Strategy(kind=strategy) if strategy else Strategy())
    if label_map is not None:
        settings[LABEL_MAP_KEY] = format_label_map(read_label_map(Path(label_map)))
    return settings


def model_input(source: PathLike, *, overrides: Mapping[str, Any] | None = None) -> "ModelInput":
    """Return the `model_input` of DatasetValidator: the input size and the anchors of a configuration.

    Args:
        source, overrides: as for `train`.

    Raises:
        InputError: the configuration cannot be read.
    """
    from detloom.components.dataset_validator.statistics.model_input import ModelInput
    from detloom.schemas.run_file.read_config import read_training_config

    config = read_training_config(os.fspath(source), read_overrides(overrides))
    return ModelInput.of_model(config.model, config.train_input.max_number_of_boxes)


def evaluate(
    model: PathLike,
    examples: PathLike,
    *,
    out: PathLike = "evaluation",
    baseline: PathLike | None = None,
    settings: EvaluatorSettings | None = None,
    gates: Gates | None = None,
) -> "EvaluationResult":
    """Evaluate an exported model, decide by the gates, and write the report to `out`.

    Args:
        model, baseline: as for `load_detector`; the baseline is measured on the same images and compared.
        examples: folder of a split, a folder that `detloom ingest` wrote (its evaluation split), or a pattern of
            TFRecord files.
        settings: slices, sizes, images of the report; None uses the defaults.
        gates: conditions for a blessing; None uses the defaults.

    Returns:
        The evaluation: `candidate.coco` has the COCO metrics (`AP`, `AP50`, ...), `decision` the decision.

    Raises:
        InputError: the model or the examples cannot be read, or do not fit each other.
    """
    from detloom.components.evaluator.evaluate_exported import evaluate_model
    from detloom.components.evaluator.evaluation_result import EvaluatorParams
    from detloom.pipelines.find_examples import parse_eval_set

    split = parse_eval_set(os.fspath(examples if "*" in os.fspath(examples) else _local(examples)))
    params = EvaluatorParams(split=split.name, settings=settings or EvaluatorSettings(), gates=gates or Gates())
    return evaluate_model(_local(model), split.files, params, _local(out), _local(baseline) if baseline else None)


def run(
    source: PathLike,
    *,
    workspace: PathLike | None = None,
    overrides: Mapping[str, Any] | None = None,
    verbose: bool = False,
) -> str:
    """Run the pipeline of a run file, or of a folder of labelled images, on this machine.

    Args:
        workspace: folder for metadata, artifacts and pushed models; None uses that of the run file.
        overrides: values by key, such as {"train.seed": 1}, in place of those of the run file.
        verbose: show the log of TFX, Beam and TensorFlow too.

    Returns:
        The summary as text: records, metrics, the decision and its reason, the paths of model and reports.

    Raises:
        InputError: a setting is invalid, or a node failed because of one.
    """
    from detloom.pipelines.init.write_run_file import read_run_source
    from detloom.pipelines.local.run_local import run_locally

    read = read_run_source(Path(source), Path(workspace) if workspace else None, read_overrides(overrides))
    return run_locally(read, verbose=verbose)


def _local(path: PathLike) -> Path:
    """Return the path of a local folder; raise InputError for an address, whose slashes `Path` would remove."""
    if is_address(os.fspath(path)):
        raise InputError(f"{redact(os.fspath(path))}: is an address; give a folder on this machine.")
    return Path(path)


@dataclass(frozen=True, eq=False)
class _GivenImage:
    """An image of `predict`; `place` names it in messages if it is not a file."""

    image: Any
    place: str

    @property
    def shown(self) -> str:
        return os.fspath(self.image) if isinstance(self.image, str | os.PathLike) else self.place

    def read(self) -> tuple[bytes, int]:
        """Return the encoded image and its number of pixels."""
        if isinstance(self.image, str | os.PathLike):
            path = Path(os.path.realpath(self.image))
            return ImageFile(path.parent, path.name).read()
        if isinstance(self.image, bytes):
            return prepare_image(self.image, self.place)
        return prepare_image(_encode_png(self.image, self.place), self.place)


def _encode_png(image: Any, place: str) -> bytes:
    from detloom.trainer_module.drawing.draw import from_deep_gray

    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or not (image.ndim == 2 or (image.ndim == 3 and image.shape[2] == 3)):
            got = f"{image.dtype} {list(image.shape)}"
            raise InputError(f"{place}: got an array {got}, allowed: uint8 [H, W, 3] (RGB) or [H, W] (gray).")
        if not image.size:
            raise InputError(f"{place}: the array {list(image.shape)} has no pixels.")
        image = Image.fromarray(image)
    if not isinstance(image, Image.Image):
        allowed = "a path, encoded bytes, a Pillow image, or an array"
        raise InputError(f"{place}: got {type(image).__name__}, allowed: {allowed}.")
    buffer = io.BytesIO()
    from_deep_gray(image).convert("RGB").save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def read_overrides(overrides: Mapping[str, Any] | None) -> list[Located]:
    """Return overrides as layers over a configuration, as `read_setting` does for `--set`."""
    layers = []
    for key, value in (overrides or {}).items():
        where = f"overrides[{key!r}]"
        layers.append(Located(nest(split_key(key, where), value), partial(_always, where)))
    return layers


def _always(where: str, _: KeyPath) -> str:
    return where
