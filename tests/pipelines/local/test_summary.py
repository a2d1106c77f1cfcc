from ml_metadata.proto import metadata_store_pb2 as pb

from detloom.pipelines.local import summary
from detloom.pipelines.local.summary import NodeRun


def cache_row(is_new, *, is_cached):
    """Return the row of a run; `is_new`: the Pusher made a version, `is_cached`: the Trainer did not run."""
    pushed = pb.Artifact(custom_properties={"pushed_is_new": pb.Value(int_value=is_new)})
    nodes = {
        "Gen": NodeRun("Gen", True, False, {}),
        "Trainer": NodeRun("Trainer", is_cached, False, {}),
        "BaselineResolver": NodeRun("BaselineResolver", False, False, {}),
        "Pusher": NodeRun("Pusher", False, False, {"pushed_model": pushed}),
    }
    ((_, text),) = summary._cache_rows(nodes)
    return text


def pusher(is_pushed):
    pushed = pb.Artifact(custom_properties={"pushed": pb.Value(int_value=is_pushed)})
    evaluation = NodeRun("DetectionEvaluator", False, False, {"evaluation": pb.Artifact(uri="runs/eval")})
    return {"DetectionEvaluator": evaluation, "Pusher": NodeRun("Pusher", False, False, {"pushed_model": pushed})}


def test_the_last_line_names_the_next_command():
    assert summary._format_next(pusher(1), "my models") == "Next: detloom serve 'my models'"
    assert summary._format_next(pusher(1), "gs://b/models") == "Next: detloom versions gs://b/models"
    assert summary._format_next(pusher(0), "models").startswith("Next: open runs/eval/report.html ")
    assert summary._format_next({}, "models") == "Next: detloom versions models"


def test_nodes_that_ran_are_shown():
    assert cache_row(1, is_cached=False) == "ran: Trainer, Pusher; cached: Gen"


def test_a_push_that_was_killed_in_the_run_before_is_shown():
    assert cache_row(1, is_cached=True) == "ran: Pusher; cached: Gen, Trainer"
    assert "Pusher" not in cache_row(0, is_cached=True)
