from detloom.schemas.contracts.rejects import Reason, Reject, format_reject, parse_reject


def test_reject_round_trip():
    reject = Reject(
        reason=Reason.BOX_INVERTED,
        scope="box",
        split="train",
        file="ä.jpg",
        record_key="1",
        detail="5 > 3\n",
        num_boxes=1,
    )
    assert parse_reject(format_reject(reject)) == reject
    assert b"\n" not in format_reject(reject)
