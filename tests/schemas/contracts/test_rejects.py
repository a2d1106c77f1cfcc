from detloom.schemas.contracts.rejects import REJECTS_FILE, Reason, Reject, format_reject, read_rejects


def test_reject_round_trip(tmp_path):
    reject = Reject(
        reason=Reason.BOX_INVERTED,
        scope="box",
        split="train",
        file="ä.jpg",
        record_key="1",
        detail="5 > 3\n",
        num_boxes=1,
    )
    (tmp_path / REJECTS_FILE).write_bytes(format_reject(reject) + b"\n" + format_reject(reject) + b"\n")
    assert list(read_rejects(tmp_path)) == [reject, reject]
