"""The process that runs models of files."""

import os

from detloom.trainer_module.inference import model_process


def test_a_process_that_is_forked_during_a_question_can_ask_its_own():
    with model_process._LOCK:
        child = os.fork()
        if not child:
            os._exit(not model_process._LOCK.acquire(blocking=False))
    assert os.waitpid(child, 0)[1] == 0
