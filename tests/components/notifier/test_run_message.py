import pytest

from detloom.components.notifier.run_message import RunMessage, run_link

PUSHED = RunMessage(
    event="pushed",
    pipeline="cells",
    place="local",
    run="2026-01-02T03:04:05",
    machine="trainer-1",
    reason="AP 0.512 is at least 0.300.",
    version="1767323045",
    destination="/srv/models/1767323045",
    numbers={"AP": 0.512, "AP_low": 0.48, "AP_high": 0.54, "AP50": 0.801},
    time="2026-01-02T03:05:00+00:00",
)


@pytest.mark.parametrize(
    ("event", "facts", "title"),
    [
        ("failed", {"node": "Trainer"}, "cells failed in Trainer"),
        ("failed", {}, "cells failed"),
        ("refused", {}, "cells: the model was refused"),
        ("pushed", {"version": "3"}, "cells: version 3 was pushed"),
        ("pushed", {}, "cells: a model was pushed"),
        ("skipped", {}, "cells: training was skipped"),
    ],
)
def test_title_of_each_event(event, facts, title):
    assert RunMessage(event=event, pipeline="cells", place="local", **facts).title == title


def test_text_has_reason_metrics_destination_and_run():
    assert PUSHED.to_text() == (
        "cells: version 1767323045 was pushed\n"
        "AP 0.512 is at least 0.300.\n"
        "AP 0.512 (0.480 to 0.540), AP50 0.801\n"
        "To: /srv/models/1767323045\n"
        "Run: 2026-01-02T03:04:05, local, trainer-1"
    )


def test_payload_has_the_same_facts_as_fields():
    payload = PUSHED.to_payload()
    assert payload.pop("text") == PUSHED.to_text()
    assert len(payload.pop("id")) == 32
    assert payload == {
        "sender": "detloom",
        "event": "pushed",
        "pipeline": "cells",
        "place": "local",
        "time": "2026-01-02T03:05:00+00:00",
        "run": "2026-01-02T03:04:05",
        "machine": "trainer-1",
        "reason": "AP 0.512 is at least 0.300.",
        "version": "1767323045",
        "destination": "/srv/models/1767323045",
        "numbers": {"AP": 0.512, "AP_low": 0.48, "AP_high": 0.54, "AP50": 0.801},
    }


def test_empty_fields_are_left_out():
    message = RunMessage(event="skipped", pipeline="cells", place="kubeflow", time="t")
    assert set(message.to_payload()) == {"text", "sender", "id", "event", "pipeline", "place", "time"}
    assert message.to_text() == "cells: training was skipped\nRun: kubeflow"


def make(**facts):
    return RunMessage(**{"event": "pushed", "pipeline": "cells", "place": "vertex", "run": "r1", **facts})


def test_same_event_of_the_same_run_has_the_same_id():
    assert make(time="a", reason="x").id == make(time="b", reason="y").id
    others = [make(run="r2"), make(event="refused"), make(pipeline="dogs"), make(place="kubeflow")]
    assert len({each.id for each in (make(), *others)}) == 5


def test_same_subject_has_the_same_id_in_a_repeated_run():
    assert make(subject="/srv/7", run="r1").id == make(subject="/srv/7", run="r2").id
    assert make(subject="/srv/7").id != make(subject="/srv/8").id


def test_without_a_run_the_id_depends_on_the_time():
    facts = {"event": "failed", "pipeline": "cells", "place": "local", "machine": "m"}
    assert RunMessage(**facts, time="a").id != RunMessage(**facts, time="b").id


def test_metrics_that_are_not_finite_are_left_out():
    message = RunMessage(event="pushed", pipeline="p", place="local", numbers={"AP": float("nan"), "AP50": 0.5})
    assert message.to_payload()["numbers"] == {"AP50": 0.5}
    assert "AP50 0.500" in message.to_text()


def test_line_breaks_in_untrusted_text_are_escaped():
    message = RunMessage(event="failed", pipeline="p", place="local", node="A\r\nBcc: x", reason="one\ntwo\x1b[31m")
    assert message.title == r"p failed in A\r\nBcc: x"
    assert r"one\ntwo\x1b[31m" in message.to_text().splitlines()


def test_chat_links_and_mentions_are_neutralized():
    reason = "AP of <!channel> is low, see <https://evil.example|here> @everyone."
    payload = RunMessage(event="refused", pipeline="p", place="local", reason=reason).to_payload()
    assert "＜!channel＞" in payload["text"]
    assert "＠everyone" in payload["text"]
    assert not set("<>@") & set(payload["text"])
    assert payload["reason"] == reason


def test_credentials_and_queries_in_addresses_are_hidden():
    message = RunMessage(
        event="pushed",
        pipeline="p",
        place="local",
        destination="s3://key:geheim@bucket/1",
        reason="Read from https://host/x?sig=geheim.",
    )
    assert "geheim" not in str(message.to_payload()) + message.to_text()
    assert message.to_payload()["destination"] == "s3://(hidden)@bucket/1"


def test_long_reason_is_truncated():
    payload = RunMessage(event="failed", pipeline="p", place="local", reason="x" * 10_000).to_payload()
    assert payload["reason"] == "x" * 1000 + "..."


def test_vertex_link_is_made_from_the_resource_name():
    name = "projects/my-project/locations/us-central1/pipelineJobs/cells-20260102"
    page = "https://console.cloud.google.com/vertex-ai/locations/us-central1/pipelines/runs/cells-20260102"
    links = run_link("vertex", name)
    assert links == {"Page of the run": f"{page}?project=my-project"}
    message = RunMessage(event="failed", pipeline="p", place="vertex", links=links)
    assert message.to_text().splitlines()[-1] == f"Page of the run: {page}?project=my-project"


def test_kubeflow_link_needs_a_host_and_a_valid_run_id():
    assert run_link("kubeflow", "1a-2b", "https://k.example/pipeline/") == {
        "Page of the run": "https://k.example/pipeline/#/runs/details/1a-2b"
    }
    assert run_link("kubeflow", "1a-2b") == {}
    assert run_link("kubeflow", "1a/../2b", "https://k.example") == {}
    assert run_link("local", "2026-01-02T03:04:05") == {}
