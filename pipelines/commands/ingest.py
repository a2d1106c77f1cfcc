"""`detloom ingest`: read a labelled data set and write checked tf.Examples, without TFX."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from detloom.components.example_gen.params import AUTO, UNKNOWN_CLASS_CHOICES, ExampleGenParams
from detloom.components.example_gen.sources.formats import FORMATS
from detloom.components.storage.s3_storage import S3Storage
from detloom.pipelines.commands.exit_codes import end_of_help
from detloom.pipelines.commands.options import FOLDER, NumberRange, complete_folder
from detloom.schemas.contracts.rejects import REJECTS_FILE, REPORT_FILE
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import redact

REJECTS_DIR = "rejects"  # inside the output folder
_REPLAYABLE_OPTIONS = {"data_folder", "output", "num_workers", "replay_folder", "beam_args", "verbose"}
_VERBOSE = click.option("--verbose", is_flag=True, help="Show the log of Beam and TensorFlow too.")


@click.command(
    epilog=end_of_help(
        "ingest",
        "detloom ingest --input data/cells --output data/examples",
        "detloom ingest --input data/cells --output data/examples --split-ratios train=0.8,eval=0.1,test=0.1",
    )
)
@click.option(
    "--input",
    "data_folder",
    type=str,
    shell_complete=complete_folder,
    help="Folder of the data set, or its address (gs://..., s3://...).",
)
@click.option(
    "--output",
    type=str,
    required=True,
    metavar="DIR",
    shell_complete=complete_folder,
    help="Folder for shards, label map, rejects and report.",
)
@click.option(
    "--format",
    "data_format",
    type=click.Choice([AUTO, *FORMATS]),
    default=AUTO,
    show_default=True,
    help="Format of the data set.",
)
@click.option(
    "--split",
    "splits",
    multiple=True,
    metavar="NAME=SOURCE",
    help="Build the split NAME from SOURCE, such as a VOC list or a COCO file. Default: the splits of the data set.",
)
@click.option(
    "--split-ratios",
    metavar="NAME=SHARE,...",
    default="",
    help="Share of each split, such as train=0.8,eval=0.1,test=0.1.",
)
@click.option("--source", default="", help="With --split-ratios: part of the data set to split; default: all of it.")
@click.option(
    "--group-by", metavar="REGEX", default="", help="Keep images together whose file names give the same first group."
)
@click.option("--stratify", is_flag=True, help="With --split-ratios: use the same mix of classes in every split.")
@click.option(
    "--separate-near-duplicates",
    is_flag=True,
    help="With --split-ratios: assign images that look the same to splits one by one; identical files stay together.",
)
@click.option("--seed", type=int, default=0, help="With --split-ratios: seed of the random division.")
@click.option(
    "--classes", metavar="A,B", default="", help="Class names with ids 1, 2, ...; default: the classes of the data set."
)
@click.option(
    "--unknown-class",
    type=click.Choice(UNKNOWN_CLASS_CHOICES),
    default="fail",
    show_default=True,
    help="How to treat a class that is not in --classes.",
)
@click.option("--images-dir", default="", help="Folder of the images inside the input; default: depends on the format.")
@click.option("--hierarchy", default="", help="Open Images: the class hierarchy JSON inside the input.")
@click.option("--masks", is_flag=True, help="Keep instance masks.")
@click.option("--keypoints", is_flag=True, help="Keep keypoints.")
@click.option("--workers", "num_workers", type=click.IntRange(min=1), default=1, show_default=True, help="Processes.")
@click.option("--gzip", is_flag=True, help="Compress the shards; saves little, because images are already compressed.")
@click.option(
    "--shard-mb",
    type=NumberRange(0, 2**20, min_open=True),
    default=128,
    show_default=True,
    help="Size of a shard in MB.",
)
@click.option(
    "--decode-images", is_flag=True, help="Decode every image in full: finds damage that headers do not show."
)
@click.option(
    "--max-reject-fraction",
    type=NumberRange(0, 1),
    default=0.05,
    show_default=True,
    help="Fail if a larger share of the records or boxes is refused.",
)
@click.option(
    "--replay",
    "replay_folder",
    type=FOLDER,
    metavar="REJECTS",
    help="Read the quarantined records of an earlier run again.",
)
@_VERBOSE
@click.argument("beam_args", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def ingest(context: click.Context, /, **options: Any) -> None:
    """Read a labelled data set and write checked tf.Examples.

    Records that cannot be used go to DIR/rejects with a reason. Arguments after -- are Apache Beam pipeline options;
    they choose the runner, for example `-- --runner=FlinkRunner --flink_master=host:8081`.
    """
    from detloom.pipelines.local.console import format_next, log_nodes

    if options["replay_folder"] is not None:
        _check_replay_options(context)
    elif not options["data_folder"]:
        raise click.UsageError("Missing option '--input' (or '--replay').")
    if options["output"].startswith(S3Storage.scheme):
        shown = redact(options["output"])
        raise InputError(f"--output: got '{shown}', allowed: a folder, or an address at gs:// or hdfs://.")
    log_nodes(options["verbose"])
    # late: imports Beam, whose import time does not belong to the ingestion time
    from detloom.components.example_gen.ingest import RefusedDataError

    started = time.monotonic()
    try:
        report = _ingest(options)
    except RefusedDataError as error:
        click.echo(format_summary(error.report, options["output"], time.monotonic() - started))
        raise
    click.echo(format_summary(report, options["output"], time.monotonic() - started))
    click.echo(format_next("detloom", "validate", options["output"]))


def _ingest(options: Mapping[str, Any]) -> dict[str, Any]:
    from detloom.components.example_gen.ingest import IngestFolders, ingest
    from detloom.components.example_gen.replay import replay

    out = IngestFolders(options["output"], f"{options['output']}/{REJECTS_DIR}")
    make_pipeline = pipeline_maker(options["num_workers"], options["beam_args"])
    if options["replay_folder"] is not None:
        return replay(options["replay_folder"], out, make_pipeline, root=options["data_folder"] or "")
    params = ExampleGenParams.from_options(
        options,
        splits=_parse_pairs("--split", options["splits"]),
        split_ratios=_parse_ratios(options["split_ratios"]),
        class_names=tuple(_split_list(options["classes"])),
        shard_max_bytes=max(1, round(options["shard_mb"] * 2**20)),
    )
    return ingest(options["data_folder"], params, out, make_pipeline)


def pipeline_maker(num_workers: int, beam_args: Sequence[str]) -> Callable[[], Any]:
    """Return a function that makes Beam pipelines: in this process, in several processes, or as `beam_args` say.

    With several processes, what they need has to be imported before, so that they can be forked.
    """
    import apache_beam as beam
    from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions

    from detloom.pipelines.local.forked_workers import build_runner

    local = ["--direct_running_mode=in_memory"]
    runner = None
    if num_workers > 1:
        local = ["--direct_running_mode=multi_processing", f"--direct_num_workers={num_workers}"]
        runner = None if beam_args else build_runner()
    has_runner = any(argument.split("=", 1)[0] == "--runner" for argument in beam_args)
    arguments = [*([] if has_runner else local), *beam_args]
    options = PipelineOptions(arguments)
    if runner is not None:
        options.view_as(DirectOptions).direct_running_mode = None  # the mode would replace the runner's environment
    unknown = set(options.get_all_options(retain_unknown_options=True)) - set(options.get_all_options())
    if unknown:
        # Not an error: a job service may define its own options.
        click.echo(f"Beam does not know the pipeline option {', '.join(sorted(unknown))}", err=True)

    def make() -> Any:
        try:
            return beam.Pipeline(runner, options)
        # an unknown runner, or one whose dependencies are missing
        except (ValueError, ImportError, AttributeError) as error:
            raise InputError(f"Beam arguments: {' '.join(arguments)}: {str(error)[:300]}") from None

    return make


def format_summary(report: Mapping[str, Any], output: str, seconds: float) -> str:
    """Format the counts, rejects and output paths of an ingestion as a table."""
    from detloom.pipelines.local.console import format_table

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
        ("dropped boxes", f"{num_boxes_refused}, whose images were written"),
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


def _check_replay_options(context: click.Context) -> None:
    for name in context.params:
        if name in _REPLAYABLE_OPTIONS:
            continue
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--replay uses the settings of the earlier run; got '{name}' as well.")


def _parse_pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise InputError(f"{option}: got {text!r}, allowed: NAME=SOURCE.")
        if name in pairs:
            raise InputError(f"{option}: {name!r} is given twice.")
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
