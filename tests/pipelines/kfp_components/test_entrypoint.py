"""The command of the components' containers: its errors, and all five steps with the executor inputs of a backend."""

import json
from pathlib import Path

import pytest
import yaml
from google.protobuf import json_format
from kfp.compiler import Compiler
from kfp.pipeline_spec import pipeline_spec_pb2

from detloom.pipelines.kfp_components import components_of, entrypoint
from detloom.schemas.errors import InputError


class Task:
    """A task without a backend: its outputs are in one folder, and all numbers are floats, as in protobuf."""

    def __init__(self, name, folder):
        self.name, self.folder = name, folder
        folder.mkdir()
        Compiler().compile(getattr(components_of("image"), name), str(folder / "component.yaml"))
        self.spec = yaml.safe_load((folder / "component.yaml").read_text())["components"][f"comp-{name}"]

    def executor_input(self, parameters, artifacts):
        declared = self.spec["inputDefinitions"].get("parameters", {})
        values = {key: each["defaultValue"] for key, each in declared.items() if "defaultValue" in each} | parameters
        outputs = self.spec["outputDefinitions"]
        message = json_format.ParseDict(
            {
                "inputs": {
                    "parameterValues": values,
                    "artifacts": {key: {"artifacts": [{"uri": str(path)}]} for key, path in artifacts.items()},
                },
                "outputs": {
                    "artifacts": {
                        key: {"artifacts": [{"type": each["artifactType"], "uri": self.path(key)}]}
                        for key, each in outputs.get("artifacts", {}).items()
                    },
                    "parameters": {key: {"outputFile": self.path(key)} for key in outputs.get("parameters", {})},
                    "outputFile": self.path("executor_output.json"),
                },
            },
            pipeline_spec_pb2.ExecutorInput(),
        )
        return json.dumps(json_format.MessageToDict(message))

    def run(self, parameters=(), **artifacts):
        return entrypoint.main([self.name, self.executor_input(dict(parameters), artifacts)])

    def path(self, key):
        return str(self.folder / "outputs" / key)

    def metadata(self, key):
        output = json.loads(Path(self.path("executor_output.json")).read_text())
        json_format.ParseDict(output, pipeline_spec_pb2.ExecutorOutput())
        return output["artifacts"][key]["artifacts"][0]["metadata"]


@pytest.fixture
def task(tmp_path):
    return lambda name: Task(name, tmp_path / name)


def test_a_mistake_ends_with_one_sentence(task, capsys, tmp_path):
    assert task("ingest").run({"data": str(tmp_path), "split_by_ratio": {"train": 0.5}}) == 1
    message = capsys.readouterr().err
    assert message.startswith("error: ingest: split_by_ratio: got {'train': 0.5}, a sum of 0.5")
    assert message.count("\n") == 1


def test_an_error_of_the_system_ends_with_one_sentence(task, capsys, tmp_path):
    step = task("ingest")
    (tmp_path / "ingest" / "outputs").write_text("a file where the folder of the outputs belongs")
    assert step.run({"data": str(tmp_path)}) == 1
    message = capsys.readouterr().err
    assert message.startswith(f"error: {tmp_path / 'ingest' / 'outputs'}")
    assert "Traceback" not in message


def test_a_defect_keeps_its_traceback(task, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError("defect")

    monkeypatch.setitem(entrypoint._STEPS, "push", fail)
    fail.__annotations__ = {}
    with pytest.raises(ZeroDivisionError):
        task("push").run({"push_to": "serving"})


def test_whole_numbers_reach_the_step_as_integers(task, monkeypatch):
    found = {}

    def train(config: str, overrides: dict) -> None:
        found.update(overrides)
        raise InputError("stop here")

    monkeypatch.setitem(entrypoint._STEPS, "train", train)
    overrides = {"train.num_steps": 8, "eval": {"sizes": [1, 2.5]}}
    step = task("train")
    assert '"train.num_steps": 8.0' in step.executor_input({"config": "", "overrides": overrides}, {})
    monkeypatch.setattr(entrypoint.Executor, "assign_input_and_output_artifacts", lambda self: None)
    assert step.run({"config": "", "overrides": overrides}) == 1
    assert json.dumps(found, sort_keys=True) == json.dumps(overrides, sort_keys=True)


@pytest.mark.slow  # trains, exports, evaluates and loads a model in a new process
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_five_steps_push_a_model(task, small_run, tmp_path):
    config, serving = small_run.read_text(), tmp_path / "serving"
    ingest, validate, train, evaluate, push = map(task, ("ingest", "validate", "train", "evaluate", "push"))
    splits = {name: f"annotations/{name}.json" for name in ("train", "eval", "test")}
    assert ingest.run({"data": str(tmp_path / "data"), "splits": splits, "max_reject_fraction": 0.5}) == 0
    counts = ingest.metadata("metrics")
    assert counts["num_in"] == counts["num_written"] + counts["num_quarantined"]
    assert counts["num_written"] > 0

    examples = ingest.path("examples")
    assert validate.run({"config": config}, examples=examples) == 0
    assert "<html" in Path(validate.path("page")).read_text()[:500].lower()
    assert (Path(validate.path("report")) / "report.json").is_file()

    overrides = {"train.num_steps": 2, "eval.evaluate_every": 2}
    assert train.run({"config": config, "overrides": overrides}, examples=examples) == 0
    assert train.metadata("metrics")["best_step"] == 2
    assert (Path(train.path("model_run")) / "config.json").is_file()

    model = train.path("model")
    arguments = {"config": config, "production": str(serving)}
    assert evaluate.run(arguments, model=model, examples=examples) == 0
    assert evaluate.metadata("metrics")["blessed"] == 1
    assert evaluate.metadata("curves")["confusionMatrix"]["annotationSpecs"][-1] == {"displayName": "background"}
    assert Path(evaluate.path("blessed")).read_text() == "true"

    assert push.run({"push_to": str(serving)}, model=model, evaluation=evaluate.path("evaluation")) == 0
    (version,) = (path for path in serving.iterdir() if path.name.isdecimal())
    assert Path(push.path("address")).read_text() == str(version)
