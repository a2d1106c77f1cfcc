import pytest

from detloom.pipelines.find_examples import find_examples, parse_eval_set, parse_eval_sets
from detloom.schemas.errors import InputError


def make_split(folder, split, num_shards=1):
    made = folder / f"Split-{split}"
    made.mkdir(parents=True)
    files = [made / f"data_tfrecord-{i:05d}-of-{num_shards:05d}" for i in range(num_shards)]
    for file in files:
        file.touch()
    return tuple(map(str, files))


def test_the_splits_that_training_needs_are_found(tmp_path):
    train, evaluation = make_split(tmp_path, "train", 2), make_split(tmp_path, "eval")
    test = make_split(tmp_path, "test")
    found = find_examples(tmp_path)
    assert (found.train_files, found.eval_files) == (train, evaluation)
    assert found.label_map_file == tmp_path / "label_map.pbtxt"
    assert find_examples(tmp_path, "eval", "test").eval_files == test


@pytest.mark.parametrize("name", ["val", "valid", "validation"])
def test_the_eval_split_can_have_another_name(tmp_path, name):
    make_split(tmp_path, "train")
    files = make_split(tmp_path, name)
    assert find_examples(tmp_path).eval_files == files


def test_the_error_for_a_missing_split_lists_the_existing_ones(tmp_path):
    make_split(tmp_path, "train")
    (tmp_path / "Split-empty").mkdir()
    with pytest.raises(InputError, match=r"got the split 'eval', allowed: empty, train"):
        find_examples(tmp_path)
    with pytest.raises(InputError, match=r"Split-empty: .* data_tfrecord-"):
        find_examples(tmp_path, "empty")
    with pytest.raises(InputError, match=r"nowhere: "):
        find_examples(tmp_path / "nowhere")


def test_a_set_can_be_a_split_folder_a_folder_of_splits_or_a_pattern(tmp_path):
    test, val = make_split(tmp_path, "test"), make_split(tmp_path, "val", 2)
    folder = parse_eval_set(str(tmp_path / "Split-test"))
    assert (folder.name, folder.files) == ("test", test)
    of_splits = parse_eval_set(str(tmp_path))
    assert (of_splits.name, of_splits.files) == ("val", val)
    pattern = parse_eval_set(f"{tmp_path}/Split-val/data*-00001-*")
    assert (pattern.name, pattern.files) == ("val", val[1:])
    single = parse_eval_set(f"night={test[0]}")
    assert (single.name, single.files) == ("night", test)


def test_an_equals_sign_can_be_part_of_a_path(tmp_path):
    files = make_split(tmp_path / "day=1", "eval")
    assert parse_eval_set(str(tmp_path / "day=1")).files == files
    assert parse_eval_set(f"x={tmp_path}/day=1").name == "x"


def test_duplicate_set_names_are_refused(tmp_path):
    for day in ("monday", "tuesday"):
        make_split(tmp_path / day, "eval")
    with pytest.raises(InputError, match=r"'eval'.* --examples NAME=FOLDER"):
        parse_eval_sets([str(tmp_path / "monday"), str(tmp_path / "tuesday")])
