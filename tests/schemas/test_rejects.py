from detloom.schemas.rejects import Reason, Reject, read_rejects, write_rejects


def test_rejects_come_back_sorted(tmp_path):
    late = Reject(
        reason=Reason.MISSING_FILE, scope="record", split="train", file="b.jpg", record_key="2", detail="no such file"
    )
    early = Reject(
        reason=Reason.BOX_INVERTED, scope="box", split="train", file="a.jpg", record_key="1", detail="xmin 5 > xmax 3"
    )
    write_rejects(tmp_path, [late, early])
    assert list(read_rejects(tmp_path)) == [early, late]
