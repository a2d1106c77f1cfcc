"""Find the records, the label map and the checkpoint that a pipeline.config of the Object Detection API names."""

import glob
import os
import posixpath
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from detloom.components.example_gen.data_folder import DataFolder
from detloom.components.example_gen.sources.formats import FORMATS, list_chunks
from detloom.components.example_gen.sources.tfrecord import read_label_map as find_label_map
from detloom.schemas.contracts.label_map import LABEL_MAP_FILE, LabelMap, parse_label_map
from detloom.schemas.errors import InputError
from detloom.schemas.model.checkpoint_address import is_web_address, parse_archive_address
from detloom.schemas.model.config import IMAGENET, PLACEHOLDER
from detloom.schemas.odapi.pipeline_config import PipelineConfigReport
from detloom.schemas.reading.redact import redact
from detloom.schemas.reading.text_file import read_text_file
from detloom.schemas.run_file.data import IngestSettings

TRAIN, EVAL = "train_input", "eval_input"  # sections of the configuration
_FIELDS = {TRAIN: "train_input_reader", EVAL: "eval_input_reader"}  # their names in a pipeline.config
_SPLIT_NAMES = {TRAIN: ("train",), EVAL: ("eval", "val", "test")}  # as the reader of TFRecords names splits
_FORMAT = "tfrecord"


@dataclass(kw_only=True)
class OdapiInputs:
    """Inputs of a run besides the configuration.

    Attributes:
        root: folder of the records.
        sources: file or pattern in it, by section; without EVAL if the configuration names no such records.
        label_map_path: relative to `root`.
        checkpoint: absolute path, address, `imagenet`, or empty for random weights.
        notes: sentences about inputs that are not those of the configuration.
    """

    root: Path
    sources: dict[str, str]
    label_map_path: str
    label_map: LabelMap
    checkpoint: str
    notes: list[str] = field(default_factory=list)


def find_inputs(
    config: Path, report: PipelineConfigReport, records: Path | None, checkpoint: str | None
) -> OdapiInputs:
    """Find the inputs of a configuration.

    Relative paths are looked up in the current folder, as by the Object Detection API, then in the folder of the file.

    Args:
        records: folder of the records, instead of those in the file.
        checkpoint: replaces that of the file; None keeps it.

    Raises:
        InputError: lists all inputs that are not usable, each with the next step.
    """
    named = _NamedInputs(config, report)
    problems: list[str] = []
    notes: list[str] = []
    root, label_map_path, weights = Path(), "", ""
    sources: dict[str, str] = {}
    try:
        root, sources = _find_in_folder(named, records, notes) if records else _find_named(named)
        label_map_path = _find_label_map(named, DataFolder(str(root)), sources, notes)
    except InputError as error:
        problems.append(str(error))
    try:
        weights = _find_checkpoint(named, checkpoint)
    except InputError as error:
        problems.append(str(error))
    if problems:
        raise InputError("\n- ".join([f"{config}: no run file can be written yet:", *problems]))
    return OdapiInputs(
        root=root,
        sources=sources,
        label_map_path=label_map_path,
        label_map=_read_label_map(root / label_map_path),
        checkpoint=weights,
        notes=notes,
    )


class _NamedInputs:
    """The paths in a pipeline.config."""

    def __init__(self, config: Path, report: PipelineConfigReport) -> None:
        self._folders = (Path.cwd(), config.absolute().parent)
        self._tree = report.located

    def text(self, *key: str) -> str:
        return str(self._tree.get(key) or "")

    def where(self, *key: str) -> str:
        return self._tree.locate(key)

    def pattern(self, section: str) -> str:
        """Return the file pattern of a section; empty if it has none."""
        found = self._tree.get((section, "input_path")) or []
        if len(found) > 1:
            raise InputError(
                f"{self.where(section, 'input_path')}: {_FIELDS[section]}.input_path: {len(found)} patterns are "
                "not supported; rename the files so that one pattern matches them, such as train-*.record."
            )
        return str(found[0]) if found else ""

    def locate(self, path: str, exists: Callable[[str], object] = os.path.exists) -> Path | None:
        """Return the absolute form of a local path or pattern if it exists."""
        if not path or "://" in path or "\0" in path:
            return None
        candidates = (os.path.abspath(folder / os.path.expanduser(path)) for folder in self._folders)
        return next((Path(each) for each in candidates if exists(each)), None)

    def explain_absence(self, path: str) -> str:
        """Return the reason why `locate` finds nothing."""
        if PLACEHOLDER in path:
            return "the placeholder of the detection zoo"
        if "://" in path:
            return "an address, which ingestion on this machine does not read; copy the files to a folder"
        searched = dict.fromkeys(str(folder) for folder in self._folders)
        return "which does not exist" + ("" if os.path.isabs(path) else f" (searched in {' and '.join(searched)})")


# --- records ----------------------------------------------------------------------------------------------------------


def _find_named(named: _NamedInputs) -> tuple[Path, dict[str, str]]:
    """Return the common folder of the records that the file names, and the pattern in it by section."""
    found: dict[str, Path] = {}
    for section in (TRAIN, EVAL):
        pattern = named.pattern(section)
        if not pattern and section == EVAL:
            continue
        path = named.locate(pattern, glob.glob)
        if path is None:
            got = f"'{redact(pattern)}', {named.explain_absence(pattern)}" if pattern else "nothing"
            raise InputError(
                f"{named.where(section, 'input_path')}: {_FIELDS[section]}.input_path: got {got}; give the folder of "
                "the TFRecord files with --records."
            )
        found[section] = path
    root = Path(os.path.commonpath([path.parent for path in found.values()]))
    is_deep = any(path.parent != root and path.parent.parent != root for path in found.values())
    if is_deep or root == Path("/"):
        links = " && ".join(
            f"ln -s {shlex.quote(str(path.parent))} records/{name}"
            for name, path in zip(("train", "eval"), found.values(), strict=False)
        )
        folders = " and ".join(str(path.parent) for path in found.values())
        raise InputError(
            f"the records are in {folders}; they must be in one folder, or in two folders beside each other: "
            f"run 'mkdir records && {links}', and give --records records."
        )
    sources = {section: path.relative_to(root).as_posix() for section, path in found.items()}
    _check_readable(root, sources)
    return root, sources


def _find_in_folder(named: _NamedInputs, records: Path, notes: list[str]) -> tuple[Path, dict[str, str]]:
    """Return `records` and the pattern in it by section: the file's own names, else those that look like splits."""
    root = Path(os.path.abspath(records))
    if not root.is_dir():
        raise InputError(f"--records: got {records}, which is not a folder.")
    folder = DataFolder(str(root))
    evidence = FORMATS[_FORMAT].detect(folder)
    splits = evidence.splits if evidence else {}
    sources: dict[str, str] = {}
    for section in (TRAIN, EVAL):
        pattern = named.pattern(section)
        detected = next((splits[name] for name in _SPLIT_NAMES[section] if name in splits), "")
        source = next((each for each in _candidates(pattern, folder, section) if _matches(root, each)), "")
        if not source and detected:
            notes.append(f"The {_FIELDS[section]} of the configuration is not in {root}; {detected} is used instead.")
        if source or detected:
            sources[section] = source or detected
        elif section == TRAIN or pattern:
            names = ", ".join(folder.list_files()[:5]) or "no file"
            raise InputError(
                f"--records: {root} has no {posixpath.basename(pattern) or 'training records'} for "
                f"{_FIELDS[section]} and no file whose name contains '{_SPLIT_NAMES[section][0]}'; it has {names}. "
                "Rename the files, or correct input_path in the configuration."
            )
    _check_readable(root, sources)
    return root, sources


def _candidates(pattern: str, folder: DataFolder, section: str) -> Iterator[str]:
    """Yield where a pattern may be in another folder than the one that was written; folders of the split first."""
    parent, name = posixpath.split(pattern)
    if name:
        yield posixpath.join(posixpath.basename(parent), name)
        yield name
        folders = sorted(folder.list_folders(), key=lambda each: each not in _SPLIT_NAMES[section])
        yield from (posixpath.join(each, name) for each in folders)


def _matches(root: Path, source: str) -> bool:
    return bool(glob.glob(os.path.join(glob.escape(str(root)), source)))


def _check_readable(root: Path, sources: dict[str, str]) -> None:
    """Raise InputError unless ingestion can read each source; every file is opened."""
    for section, source in sources.items():
        for _ in list_chunks(_FORMAT, DataFolder(str(root)), section, source, IngestSettings()):
            pass


# --- label map --------------------------------------------------------------------------------------------------------


def _find_label_map(named: _NamedInputs, folder: DataFolder, sources: dict[str, str], notes: list[str]) -> str:
    """Return the label map that ingestion reads for these records; raise InputError if it is not the one of the file.

    Ingestion reads label_map.pbtxt or the only .pbtxt file, beside the records or at the top of their folder.
    """
    key = (TRAIN, "label_map_path")
    written, usual = named.text(*key), f"{folder.root}/{LABEL_MAP_FILE}"
    wanted = named.locate(written)
    got = f"{named.where(*key)}: label_map_path: got '{redact(written)}'"
    found: list[str] = []
    for section, source in sources.items():
        chunk = next(list_chunks(_FORMAT, folder, section, source, IngestSettings()))
        path = find_label_map(folder, chunk.names[0]).path
        if not path and wanted is None:
            raise InputError(
                f"{got}, {named.explain_absence(written)}, and {folder.root} has no label map; copy the label map "
                f"of the records to {usual}."
            )
        if wanted is not None and (not path or _differ(Path(folder.root, path), wanted)):
            reads = f"{folder.root}/{path}, which differs" if path else "one beside the records"
            raise InputError(
                f"{got}, but ingestion reads {reads}; run 'cp {shlex.quote(str(wanted))} {shlex.quote(usual)}', and "
                "remove other label maps from that folder."
            )
        found.append(path)
    if wanted is None:
        notes.append(f"The label map of the configuration, {written or 'none'}, is not here; {found[0]} is used.")
    return found[0]


def _differ(one: Path, other: Path) -> bool:
    return not one.samefile(other) and _read_label_map(one) != _read_label_map(other)


def _read_label_map(path: Path) -> LabelMap:
    """Read a label map of bounded size; unlike an artifact's, it may be any file that the configuration names."""
    return parse_label_map(read_text_file(path), str(path))


# --- checkpoint -------------------------------------------------------------------------------------------------------


def _find_checkpoint(named: _NamedInputs, given: str | None) -> str:
    """Return the initial weights as a run file needs them."""
    key = ("train", "fine_tune_checkpoint")
    text = (named.text(*key) if given is None else given).strip()
    where = f"{named.where(*key)}: fine_tune_checkpoint" if given is None else "--checkpoint"
    if is_web_address(text):
        try:
            return str(parse_archive_address(text))
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
    if text in ("", IMAGENET) or ("://" in text and PLACEHOLDER not in text):
        return text
    path = named.locate(text, lambda each: os.path.exists(f"{each}.index") or os.path.exists(each))
    if path is None:
        raise InputError(
            f"{where}: got '{redact(text)}', {named.explain_absence(text)}; give --checkpoint with the path of a "
            "checkpoint without suffix, the https address of an archive, imagenet, or '' for random weights."
        )
    return str(path)
