"""`detloom ingest`, `inspect`, `validate`, `export-coco`, `export-yolo`: data sets without TFX. Imports are late."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from detloom.components.example_gen.params import AUTO, UNKNOWN_CLASS_CHOICES, ExampleGenParams
from detloom.components.example_gen.sources.formats import FORMATS
from detloom.pipelines.number_range import NumberRange
from detloom.schemas.errors import InputError
from detloom.schemas.rejects import REJECTS_FILE, REPORT_FILE

if TYPE_CHECKING:
    from detloom.components.example_gen.exported_folder import ExportCounts
    from detloom.schemas.config import TrainEvalConfig
    from detloom.schemas.data_checks import DataChecks

REJECTS_DIR = "rejects"  # inside the output
_REPLAYABLE_OPTIONS = {"data_folder", "output", "num_workers", "replay_folder", "beam_args", "verbose"}
_FOLDER = click.Path(path_type=Path, file_okay=False)
_VERBOSE = click.option("--verbose", is_flag=True, help="Show the log of Beam and TensorFlow too.")


@click.command()
@click.option("--input", "data_folder", type=str, help="The data set's folder.")
@click.option("--output", type=str, required=True, metavar="DIR", help="Gets shards, label map, quarantine, report.")
@click.option(
    "--format",
    "data_format",
    type=click.Choice([AUTO, *FORMATS]),
    default=AUTO,
    show_default=True,
    help="What the folder holds.",
)
@click.option(
    "--split",
    "splits",
    multiple=True,
    metavar="NAME=SOURCE",
    help="An output split and its part of the data set: a VOC list, a COCO file. Default: the data set's own splits.",
)
@click.option("--split-ratios", metavar="NAME=SHARE,...", default="", help="Such as train=0.8,eval=0.1,test=0.1.")
@click.option("--source", default="", help="With --split-ratios: the part of the data set to split; default all of it.")
@click.option("--group-by", metavar="REGEX", default="", help="Its first group names what never straddles splits.")
@click.option("--stratify", is_flag=True, help="With --split-ratios: keep the mix of classes alike in all splits.")
@click.option("--seed", type=int, default=0, help="With --split-ratios: another one gives another division.")
@click.option("--classes", metavar="A,B", default="", help="Class names with ids 1, 2, ...; default: the data's own.")
@click.option(
    "--unknown-class",
    type=click.Choice(UNKNOWN_CLASS_CHOICES),
    default="fail",
    show_default=True,
    help="What a class outside those does.",
)
@click.option("--images-dir", default="", help="Folder of the images inside the input; default: the format's.")
@click.option("--hierarchy", default="", help="Open Images: the class hierarchy JSON inside the input.")
@click.option("--masks", is_flag=True, help="Keep instance masks.")
@click.option("--keypoints", is_flag=True, help="Keep keypoints.")
@click.option("--workers", "num_workers", type=click.IntRange(min=1), default=1, show_default=True, help="Processes.")
@click.option("--gzip", is_flag=True, help="Compress the shards; encoded images hardly get smaller.")
@click.option("--shard-mb", type=NumberRange(0, 2**20, min_open=True), default=128, show_default=True)
@click.option("--decode-images", is_flag=True, help="Decode every image in full: finds what headers do not show.")
@click.option(
    "--max-reject-fraction",
    type=NumberRange(0, 1),
    default=0.05,
    show_default=True,
    help="More refused records, or boxes, fail the run.",
)
@click.option(
    "--replay", "replay_folder", type=_FOLDER, metavar="REJECTS", help="Read the quarantined records of a run again."
)
@_VERBOSE
@click.argument("beam_args", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def ingest(context: click.Context, /, **options: Any) -> None:
    """Read a labelled data set and write checked tf.Examples.

    What cannot be used goes to DIR/rejects with a reason. Arguments after -- are Apache Beam's pipeline options: they
    choose the runner, such as `-- --runner=FlinkRunner --flink_master=host:8081`.
    """
    from detloom.pipelines.console import log_nodes

    if options["replay_folder"] is not None:
        _check_replay_options(context)
    elif not options["data_folder"]:
        raise click.UsageError("Missing option '--input' (or '--replay').")
    log_nodes(options["verbose"])
    from detloom.components.example_gen.refusal import RefusedDataError  # brings TensorFlow: not ingestion's seconds

    started = time.monotonic()
    try:
        report = _ingest(options)
    except RefusedDataError as error:
        click.echo(format_summary(error.report, options["output"], time.monotonic() - started))
        raise
    click.echo(format_summary(report, options["output"], time.monotonic() - started))


def _ingest(options: Mapping[str, Any]) -> dict[str, Any]:
    from detloom.components.example_gen.ingest import IngestFolders, ingest
    from detloom.components.example_gen.replay import replay

    out = IngestFolders(options["output"], f"{options['output']}/{REJECTS_DIR}")
    make_pipeline = pipeline_maker(options["num_workers"], options["beam_args"])
    if options["replay_folder"] is not None:
        return replay(options["replay_folder"], out, make_pipeline, root=options["data_folder"] or "")
    params = ExampleGenParams(
        data_format=options["data_format"],
        splits=_parse_pairs("--split", options["splits"]),
        split_ratios=_parse_ratios(options["split_ratios"]),
        source=options["source"],
        split_group=options["group_by"],
        split_stratify=options["stratify"],
        split_seed=options["seed"],
        images_dir=options["images_dir"],
        hierarchy_file=options["hierarchy"],
        with_masks=options["masks"],
        with_keypoints=options["keypoints"],
        class_names=tuple(_split_list(options["classes"])),
        unknown_class=options["unknown_class"],
        shard_max_bytes=max(1, round(options["shard_mb"] * 2**20)),
        gzip=options["gzip"],
        decode_images=options["decode_images"],
        max_reject_fraction=options["max_reject_fraction"],
    )
    return ingest(options["data_folder"], params, out, make_pipeline)


def pipeline_maker(num_workers: int, beam_args: Sequence[str]) -> Callable[[], Any]:
    """Makes Beam pipelines: one worker in this process, several in processes of their own, or what `beam_args` say."""
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    local = ["--direct_running_mode=in_memory"]
    if num_workers > 1:
        local = ["--direct_running_mode=multi_processing", f"--direct_num_workers={num_workers}"]
    has_runner = any(argument.split("=", 1)[0] == "--runner" for argument in beam_args)
    arguments = [*([] if has_runner else local), *beam_args]
    options = PipelineOptions(arguments)
    unknown = set(options.get_all_options(retain_unknown_options=True)) - set(options.get_all_options())
    if unknown:
        # Not an error: a job service may have options of its own.
        click.echo(f"Beam itself knows no pipeline option {', '.join(sorted(unknown))}", err=True)

    def make() -> Any:
        try:
            return beam.Pipeline(options=options)
        except (ValueError, ImportError, AttributeError) as error:  # an unknown runner, or one with parts missing
            raise InputError(f"Beam arguments: {' '.join(arguments)}: {str(error)[:300]}") from None

    return make


def format_summary(report: Mapping[str, Any], output: str, seconds: float) -> str:
    """What went in and where it went, for people."""
    from detloom.pipelines.console import format_table

    def count(records: int, boxes: int) -> str:
        return f"{records} images, {boxes} boxes"

    def reasons(counts: Mapping[str, int]) -> str:
        return ", ".join(f"{name} {number}" for name, number in counts.items()) or "none"

    num_boxes_refused = report["num_boxes_rejected"]
    num_bytes = sum(split["num_bytes"] for split in report["splits"].values())
    splits = ", ".join(f"{name} {split['num_written']}" for name, split in report["splits"].items())
    rows = [
        ("format", f"{report['data_format']}: {report['evidence']}"),
        ("in", count(report["num_in"], report["num_boxes_in"])),
        ("written", f"{count(report['num_written'], report['num_boxes_written'])} ({splits})"),
        ("quarantined", count(report["num_quarantined"], report["num_boxes_quarantined"])),
        ("refused boxes", f"{num_boxes_refused} of images that were written"),
        ("reasons", reasons(report["rejects_by_reason"])),
        ("repairs", reasons(report["repairs"])),
        ("left out", reasons(report["left_out"])),
        ("time", f"{seconds:.1f} s, {report['num_in'] / seconds:.0f} images/s, {num_bytes / 1e6 / seconds:.1f} MB/s"),
        ("examples", output),
        ("rejects", f"{output}/{REJECTS_DIR}/{REJECTS_FILE}"),
        ("report", f"{output}/{REJECTS_DIR}/{REPORT_FILE}"),
    ]
    if "num_asked" in report:
        rows.insert(1, ("asked for", f"{report['num_asked']} quarantined images"))
    return format_table(rows)


@click.command()
@click.argument("examples", metavar="DIR", type=_FOLDER)
@click.option(
    "--output", type=click.Path(path_type=Path), help="The page; default: DIR/inspect.html, or DIR/augment.html."
)
@click.option("--split", help="Only this split.")
@click.option("--class", "class_name", help="Only pictures with an object of this class.")
@click.option("--pictures", "num_pictures", type=click.IntRange(1, 200), help="Default: 24, or 8 with --augment.")
@click.option("--augment", is_flag=True, help="Show what training makes of the pictures, beside them as stored.")
@click.option("--config", metavar="CONFIG", help="With --augment: pipeline.config, run file or preset to train with.")
@click.option(
    "--versions",
    "num_versions",
    type=click.IntRange(1, 8),
    default=3,
    show_default=True,
    help="With --augment: of each picture.",
)
def inspect(
    examples: Path,
    output: Path | None,
    split: str | None,
    class_name: str | None,
    num_pictures: int | None,
    augment: bool,
    config: str | None,
    num_versions: int,
) -> None:
    """Make a page of annotated samples, class and size distributions of the examples in DIR.

    With --augment, the page shows samples beside what training sees of them: `detloom inspect DIR --augment --config
    run.yaml`.
    """
    if augment != (config is not None):
        raise click.UsageError("--augment and --config go together: the augmentations are those of a configuration.")
    if config is not None:
        from detloom.components.dataset_validator.augment_page import AUGMENT_HTML, write_augment_page
        from detloom.pipelines.config_check import read_config

        page = write_augment_page(
            examples,
            output or examples / AUGMENT_HTML,
            read_config(config),
            num_pictures=num_pictures or 8,
            num_versions=num_versions,
            split=split,
            class_name=class_name,
        )
    else:
        from detloom.components.dataset_validator.inspect_page import INSPECT_HTML, write_inspect_page

        page = write_inspect_page(
            examples,
            output or examples / INSPECT_HTML,
            num_pictures=num_pictures or 24,
            split=split,
            class_name=class_name,
        )
    click.echo(f"Wrote {page}")


@click.command()
@click.argument("examples", metavar="DIR", type=_FOLDER)
@click.option("--output", type=_FOLDER, help="Gets report.json and report.html; default: DIR/validation.")
@click.option("--previous", type=click.Path(path_type=Path), metavar="REPORT.json", help="Of earlier data, for drift.")
@click.option(
    "--checks", "checks_file", type=click.Path(path_type=Path), metavar="FILE.yaml", help="Severities, limits."
)
@click.option(
    "--config",
    metavar="CONFIG",
    help="pipeline.config, run file or preset: judge boxes by its input, anchors; run files: their checks too.",
)
@click.option("--train-split", default="", metavar="NAME", help="Default: train, else the first.")
@click.option("--workers", "num_workers", type=click.IntRange(min=1), default=1, show_default=True, help="Processes.")
@_VERBOSE
def validate(
    examples: Path,
    output: Path | None,
    previous: Path | None,
    checks_file: Path | None,
    config: str | None,
    train_split: str,
    num_workers: int,
    verbose: bool,
) -> None:
    """Check the examples in DIR before training: boxes, classes, leakage between splits, drift, anchors.

    Exit code 1 if a check of severity `fail` does not pass.
    """
    from detloom.components.dataset_validator.validate import describe_failures, validate_examples
    from detloom.pipelines.console import format_table, log_nodes
    from detloom.schemas.config import InputReader

    settings, checks = _read_validation(config, checks_file)
    if train_split and not (examples / f"Split-{train_split}").is_dir():
        raise InputError(f"{examples}: --train-split: got {train_split!r}, needed: a folder Split-{train_split} there.")
    log_nodes(verbose)
    folder = output or examples / "validation"
    report = validate_examples(
        examples,
        folder,
        checks=checks,
        model=settings.model if settings else None,
        max_boxes=(settings.train_input if settings else InputReader()).max_number_of_boxes,
        train_split=train_split,
        previous_report=previous,
        make_pipeline=pipeline_maker(num_workers, ()),
    )
    rows = [(check["status"], check["check"], check["sentence"]) for check in report["checks"]]
    click.echo(format_table(rows))
    click.echo(f"{report['sentence']}\nWrote {folder / 'report.html'} and report.json beside it")
    if report["verdict"] == "failed":
        raise InputError(f"{examples}: {describe_failures(report)}")


def _read_validation(config: str | None, checks_file: Path | None) -> "tuple[TrainEvalConfig | None, DataChecks]":
    """What `--config` names, and the checks: those of `--checks`, else of a run file, else the defaults."""
    from detloom.pipelines.config_check import is_run_file, read_config
    from detloom.schemas.data_checks import DataChecks
    from detloom.schemas.read_run_file import build_run, load_run_tree
    from detloom.schemas.typed_dict import from_dict
    from detloom.schemas.yaml_file import read_yaml

    settings = read_config(config) if config else None
    if checks_file is not None:
        data, locate = read_yaml(checks_file)
        return settings, from_dict(DataChecks, data or {}, locate=locate)
    if config and is_run_file(config):
        return settings, build_run(load_run_tree(Path(config))[0]).checks
    return settings, DataChecks()


@click.command("export-coco")
@click.argument("examples", metavar="DIR", type=_FOLDER)
@click.argument("output", metavar="OUT", type=_FOLDER)
def export_coco(examples: Path, output: Path) -> None:
    """Write the examples in DIR as a COCO data set: OUT/images/ and OUT/annotations/SPLIT.json."""
    from detloom.components.example_gen.export_coco import export_coco as export

    click.echo(_format_export(export(examples, output), output))


@click.command("export-yolo")
@click.argument("examples", metavar="DIR", type=_FOLDER)
@click.argument("output", metavar="OUT", type=_FOLDER)
def export_yolo(examples: Path, output: Path) -> None:
    """Write the examples in DIR as a YOLO data set: OUT/images/, OUT/labels/ and OUT/data.yaml."""
    from detloom.components.example_gen.export_yolo import export_yolo as export

    click.echo(_format_export(export(examples, output), output))


COMMANDS = (ingest, inspect, validate, export_coco, export_yolo)


def _format_export(counts: "ExportCounts", output: Path) -> str:
    lines = [
        f"{split}: {num_images} images, {counts.num_objects[split]} boxes"
        for split, num_images in counts.num_images.items()
    ]
    lines += [f"{split}: no images, left out" for split in counts.empty_splits]
    for title, found in (("Lost", counts.lost), ("Changed", counts.changed)):
        if found:
            lines.append(f"{title}: " + ", ".join(f"{name} {number}" for name, number in sorted(found.items())))
    return "\n".join([*lines, f"Wrote {output}"])


def _check_replay_options(context: click.Context) -> None:
    for name in context.params:
        if name in _REPLAYABLE_OPTIONS:
            continue
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--replay reads with the settings of the first time; got '{name}' beside it.")


def _parse_pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise InputError(f"{option}: got {text!r}, allowed: NAME=SOURCE.")
        if name in pairs:
            raise InputError(f"{option}: {name!r} stands twice.")
        pairs[name] = value
    return pairs


def _parse_ratios(text: str) -> dict[str, float]:
    ratios = {}
    for name, share in _parse_pairs("--split-ratios", _split_list(text)).items():
        try:
            ratios[name] = float(share)
        except ValueError:
            raise InputError(f"--split-ratios: got {name}={share!r}, allowed: a number.") from None
    return ratios


def _split_list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
