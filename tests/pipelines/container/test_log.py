import logging

import pytest


@pytest.mark.parametrize(
    ("name", "level", "message", "out", "err"),
    [
        ("detloom", logging.INFO, "saved at step 40", "saved at step 40\n", ""),
        ("detloom", logging.WARNING, "few pictures", "", "warning: few pictures\n"),
        ("apache_beam", logging.WARNING, "chatter", "", ""),
        ("apache_beam", logging.ERROR, "worker died", "", "error: worker died\n"),
        ("apache_beam.runners.dataflow.internal.apiclient", logging.INFO, "Created job", "Created job\n", ""),
    ],
)
def test_the_log_shows_ours_and_errors(task_log, capsys, name, level, message, out, err):
    logging.getLogger(name).log(level, message)
    assert capsys.readouterr() == (out, err)


def test_components_log_through_absl(task_log, capsys):
    from absl import logging as absl_logging

    from detloom.pipelines import demo_data

    record = absl_logging.get_absl_logger().makeRecord(
        "absl", logging.INFO, demo_data.__file__, 1, "made %d", (3,), None
    )
    absl_logging.get_absl_logger().handle(record)
    absl_logging.info("of somebody else")
    assert capsys.readouterr() == ("made 3\n", "")
