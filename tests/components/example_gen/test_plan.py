"""Classes, duplicates, splits and shards: the steps of planning in sequence, without Beam."""

from collections import Counter, defaultdict

import numpy as np
import pytest
from labelled_data import read_rejects
from PIL import Image

from detloom.components.example_gen import hash_images as hash_images_module
from detloom.components.example_gen import read_annotations as read_annotations_module
from detloom.components.example_gen.hash_images import ImageHashes, group_duplicates, hash_images, list_blocks
from detloom.components.example_gen.ingest_job import IngestJob, decode_record
from detloom.components.example_gen.params import ExampleGenParams
from detloom.components.example_gen.plan import hash_fraction, plan, read_plan, split_by_hash, split_stratified
from detloom.components.example_gen.read_annotations import list_chunks, read_annotations
from detloom.schemas.contracts.rejects import REJECTS_FILE
from detloom.schemas.errors import InputError


class Planned:
    """The result of planning: label map, shards, records by split, rejects."""

    def __init__(self, folder, staging, **changes):
        params = ExampleGenParams(**{"format": "voc", "splits": {"train": "train", "eval": "val"}, **changes})
        job = IngestJob(
            params=params,
            data_format=params.format,
            root=str(folder),
            subfolders=("",),
            sources={"": params.source} if params.split_by_ratio else params.splits,
            examples=str(staging),
            output_splits=tuple(params.split_by_ratio or params.splits),
        )
        num_chunks, _ = list_chunks(job)
        for index in range(num_chunks):
            read_annotations(index, job)
        for block in (block for index in range(num_chunks) for block in list_blocks(index, job)):
            hash_images(block, job)
        self.shards = plan(num_chunks, job)
        self.plan = read_plan(job)
        if self.plan.error:
            raise InputError(self.plan.error)
        self.num_records_by_shard = []
        self.keys = {split: [] for split in job.output_splits}
        for shard in self.shards:
            lines = list(job.staging.read_lines(job.shard_records_file(shard.split, shard.index)))
            self.num_records_by_shard.append(len(lines))
            self.keys[shard.split] += [decode_record(line).record_key for line in lines]
        parts = sorted((staging / ".incomplete/rejects").iterdir())
        (staging / REJECTS_FILE).write_bytes(b"".join(part.read_bytes() for part in parts))
        self.rejects = [(reject.reason.value, reject.split, reject.record_key) for reject in read_rejects(staging)]
        self.details = [reject.detail for reject in read_rejects(staging)]


@pytest.fixture
def planned(tmp_path):
    return lambda folder, **changes: Planned(folder, tmp_path / f"staging-{len(list(tmp_path.iterdir()))}", **changes)


@pytest.fixture
def make_sized_voc(make_voc):
    """Create a VOC folder with one list, and image files of the given sizes in bytes."""

    def make(sizes, name="voc"):
        folder = make_voc({"train": [f"{index:03d}" for index in range(len(sizes))]}, name=name)
        for index, size in enumerate(sizes):
            (folder / f"JPEGImages/{index:03d}.jpg").write_bytes(bytes(size))
        return folder

    return make


TRAIN = {"splits": {"train": "train"}}


def test_shards_have_equal_bytes_and_contain_every_record_once(make_sized_voc, planned):
    found = planned(make_sized_voc([100] * 64), shard_max_bytes=1600, **TRAIN)  # 6400 bytes in all
    assert found.num_records_by_shard == [16, 16, 16, 16]
    assert [shard.file_name for shard in found.shards][:2] == [
        "data_tfrecord-00000-of-00004",
        "data_tfrecord-00001-of-00004",
    ]
    assert sorted(found.keys["train"]) == [f"{index:03d}" for index in range(64)]


def test_a_small_split_is_divided_but_a_tiny_one_is_not(make_sized_voc, planned):
    assert len(planned(make_sized_voc([10] * 70), **TRAIN).shards) == 3  # ceil(70 / 32)
    assert len(planned(make_sized_voc([10] * 20, "tiny"), **TRAIN).shards) == 1


def test_the_plan_does_not_depend_on_the_order_of_the_source(make_sized_voc, planned):
    folder = make_sized_voc(range(40))
    before = planned(folder, shard_max_bytes=200, **TRAIN)
    names = (folder / "ImageSets/Main/train.txt").read_text().split()
    (folder / "ImageSets/Main/train.txt").write_text("\n".join(names[::-1]))
    assert planned(folder, shard_max_bytes=200, **TRAIN).keys == before.keys


@pytest.mark.parametrize(
    ("categories", "expected"),
    [
        ([{"id": 3, "name": "cat"}, {"id": 7, "name": "dog"}], [(3, "cat"), (7, "dog")]),
        ([{"id": 0, "name": "all"}, {"id": 1, "name": "cat", "supercategory": "all"}], [(1, "cat")]),
    ],
)
def test_coco_classes_keep_their_category_ids(make_coco, planned, categories, expected):
    folder = make_coco({"t.json": ([{"id": 1, "file_name": "a.jpg"}], [])}, categories)
    changes = {"format": "coco", "splits": {"train": "t.json"}, "allow_no_objects": True}
    assert planned(folder, **changes).plan.label_map == expected


@pytest.mark.parametrize(("given", "expected"), [((), ["ant", "zebra"]), (("zebra", "ant"), ["zebra", "ant"])])
def test_other_classes_are_numbered_as_given_or_sorted_by_name(make_voc, planned, given, expected):
    folder = make_voc({"train": ["a"], "val": ["b"]}, {"a": [("zebra", 1, 1, 9, 9)], "b": [("ant", 1, 1, 9, 9)]})
    assert planned(folder, classes=given).plan.label_map == list(enumerate(expected, 1))


def test_a_used_coco_category_id_zero_becomes_1(make_coco, planned):
    annotation = {"image_id": 1, "category_id": 0, "bbox": [1, 2, 3, 4]}
    images = [{"id": 1, "file_name": "a.jpg"}]
    folder = make_coco({"t.json": (images, [annotation])}, categories=[{"id": 0, "name": "cat"}])
    assert planned(folder, format="coco", splits={"train": "t.json"}).plan.label_map == [(1, "cat")]


def test_an_unknown_class_fails_with_class_file_and_allowed_names(make_voc, planned):
    folder = make_voc({"train": ["a"], "val": ["b"]}, {"b": [("cow", 1, 1, 9, 9)]})
    with pytest.raises(InputError, match=r"Annotations/b\.xml: record 'b' has class 'cow', allowed: \['cat', 'dog'\]"):
        planned(folder, classes=("dog", "cat"))
    planned(folder, classes=("dog", "cat"), unknown_class="reject")
    planned(folder, classes=("dog", "cat"), unknown_class="leave_out")


def test_an_unknown_category_id_fails_with_file_annotation_and_allowed_ids(make_coco, planned):
    annotation = {"image_id": 1, "category_id": 99, "bbox": [1, 2, 3, 4]}
    folder = make_coco({"t.json": ([{"id": 1, "file_name": "a.jpg"}], [annotation])})
    changes = {"format": "coco", "splits": {"train": "t.json"}}
    message = r"coco/t\.json: annotations\[0\]: category_id 99 .*allowed: \[3, 7\]"
    with pytest.raises(InputError, match=message):
        planned(folder, **changes)
    with pytest.raises(
        InputError, match=r"no box; 1 boxes were rejected; the first reason is t\.json: annotations\[0\]"
    ):
        planned(folder, unknown_class="reject", **changes)
    changes |= {"unknown_class": "reject", "allow_no_objects": True}
    assert planned(folder, **changes).rejects == [("unknown_class", "train", "1")]


def test_a_name_that_is_listed_twice_is_kept_once(make_voc, planned):
    found = planned(make_voc({"train": ["a", "b", "a"]}), **TRAIN)
    assert sorted(found.keys["train"]) == ["a", "b"]
    assert found.rejects == [("duplicate_id", "train", "a")]
    assert found.plan.counts["train"].num_boxes_quarantined == 1


def test_an_image_in_two_splits_is_quarantined_in_the_second(make_voc, planned):
    found = planned(make_voc({"train": ["a", "b"], "val": ["b", "c"]}))
    assert (sorted(found.keys["train"]), found.keys["eval"]) == (["a", "b"], ["c"])
    assert found.rejects == [("duplicate_image", "eval", "b")]
    (detail,) = found.details
    assert "record 'b' of split 'train'" in detail


def test_a_rejected_record_does_not_claim_its_image(make_coco, planned):
    images = [{"id": 1, "file_name": "a.jpg"}, {"id": "1", "file_name": "b.jpg"}, {"id": 2, "file_name": "b.jpg"}]
    folder = make_coco({"t.json": (images, [])})  # 1 and "1" are two ids but one record key
    found = planned(folder, format="coco", splits={"train": "t.json"}, allow_no_objects=True)
    assert sum(map(len, found.keys.values())) + len(found.rejects) == 3
    assert "2" in found.keys["train"]


def test_equal_ids_in_two_files_are_not_duplicates(make_coco, planned):
    folder = make_coco(
        {"t.json": ([{"id": 1, "file_name": "a.jpg"}], []), "e.json": ([{"id": 1, "file_name": "b.jpg"}], [])}
    )
    found = planned(folder, format="coco", splits={"train": "t.json", "eval": "e.json"}, allow_no_objects=True)
    assert (found.keys, found.rejects) == ({"train": ["1"], "eval": ["1"]}, [])


def test_two_splits_may_share_one_source(make_voc, planned):
    folder = make_voc({"train": ["a"], "val": ["b"]})
    found = planned(folder, splits={"train": "train", "eval": "val", "test": "val"})
    assert found.keys == {"train": ["a"], "eval": ["b"], "test": ["b"]}


def test_an_empty_source_is_an_error_with_its_file(make_coco, planned):
    folder = make_coco({"t.json": ([], [])})
    with pytest.raises(InputError, match=r"split 'train' \(t\.json\)"):
        planned(folder, format="coco", splits={"train": "t.json"})


RATIOS = {"splits": {}, "split_by_ratio": {"train": 0.6, "eval": 0.4}, "source": "train"}


def test_a_record_keeps_its_split_when_data_is_added(make_voc, planned):
    stems = [f"{index:03d}" for index in range(60)]
    few = planned(make_voc({"train": stems[:30]}, name="few"), **RATIOS)
    many = planned(make_voc({"train": stems}, name="many"), **RATIOS)
    assert all(set(few.keys[split]) <= set(many.keys[split]) for split in few.keys)
    assert min(map(len, many.keys.values())) > 10  # 24 expected in eval
    other = planned(make_voc({"train": stems}, name="other"), seed=1, **RATIOS)
    assert other.keys["eval"] != many.keys["eval"]


def test_groups_stay_in_one_split_and_a_record_without_a_group_is_quarantined(make_voc, planned):
    stems = [f"cam{camera}_{index}" for camera in range(12) for index in range(4)]
    found = planned(make_voc({"train": [*stems, "stray"]}), group_by=r"/(cam\d+)_", **RATIOS)
    cameras = {split: {key.split("_")[0] for key in keys} for split, keys in found.keys.items()}
    assert cameras["train"] | cameras["eval"] == {f"cam{camera}" for camera in range(12)}
    assert not cameras["train"] & cameras["eval"]
    assert found.rejects == [("no_group", "", "stray")]


def test_stratification_puts_a_rare_class_into_every_split(make_voc, planned):
    stems = [f"{index:03d}" for index in range(50)]
    objects = {stem: [("cat", 1, 1, 9, 9), *([("lynx", 2, 2, 9, 9)] if stem < "005" else [])] for stem in stems}
    found = planned(make_voc({"train": stems}, objects), stratify=True, **RATIOS)
    lynxes = {split: sum(key < "005" for key in keys) for split, keys in found.keys.items()}
    assert lynxes == {"train": 3, "eval": 2}
    assert Counter({split: len(keys) for split, keys in found.keys.items()}) == {"train": 30, "eval": 20}


@pytest.fixture
def make_pictures(make_voc):
    """Create a VOC folder with one list; each image has random grey areas. Return it and a function that writes one."""

    def make(stems):
        folder = make_voc({"train": stems})

        def write(stem, seed, **options):
            areas = np.random.default_rng(seed).integers(0, 255, (8, 9), np.uint8)
            image = Image.fromarray(areas).resize((90, 80), Image.Resampling.NEAREST)
            image.save(folder / f"JPEGImages/{stem}.jpg", **options)

        for seed, stem in enumerate(stems):
            write(stem, seed)
        return folder, write

    return make


def splits_of(found):
    return {key: split for split, keys in found.keys.items() for key in keys}


STEMS = [f"{index:03d}" for index in range(40)]
# Each image of an odd number is a copy of the one before it, for the first ten.
PAIRS = [(f"{index:03d}", f"{index + 1:03d}") for index in range(0, 10, 2)]
# The numbers whose hash_fraction is 0.6 or more; they must never change.
IN_EVAL = {0, 3, 10, 14, 15, 16, 17, 18, 19, 24, 25, 27, 29, 30, 31, 33, 34, 38, 39}
BY_HASH = {stem: "eval" if int(stem) in IN_EVAL else "train" for stem in STEMS}
JOINED = {**BY_HASH, **{second: BY_HASH[first] for first, second in PAIRS}}


@pytest.mark.parametrize("separate_near_duplicates", [False, True])
def test_identical_images_stay_in_one_split_and_no_other_image_moves(
    make_pictures, planned, separate_near_duplicates, monkeypatch
):
    monkeypatch.setattr(read_annotations_module, "_RECORDS_PER_BLOCK", 7)
    folder, write = make_pictures(STEMS)
    for number, (_, second) in enumerate(PAIRS):
        write(second, seed=2 * number)
    if separate_near_duplicates:
        monkeypatch.setattr(hash_images_module, "hash_image", None)  # nothing is decoded
    assert splits_of(planned(folder, separate_near_duplicates=separate_near_duplicates, **RATIOS)) == JOINED


@pytest.mark.parametrize(("separate_near_duplicates", "expected"), [(False, JOINED), (True, BY_HASH)])
def test_near_duplicates_stay_in_one_split_unless_they_may_be_separated(
    make_pictures, planned, separate_near_duplicates, expected
):
    folder, write = make_pictures(STEMS)
    for number, (_, second) in enumerate(PAIRS):
        write(second, seed=2 * number, quality=50)
    assert splits_of(planned(folder, separate_near_duplicates=separate_near_duplicates, **RATIOS)) == expected


@pytest.mark.parametrize(("max_distance", "num_groups"), [(6, 2), (7, 1)])
def test_near_duplicates_differ_in_at_most_the_given_number_of_bits(max_distance, num_groups):
    look = 0x0F0F0F0F0F0F0F0F
    looks_N = np.array([look, look ^ 0b1111111], np.uint64)
    hashes = ImageHashes(np.zeros(2, np.uint64), looks_N, np.zeros(2, bool), np.ones(2, bool))
    assert len(set(group_duplicates(hashes, max_distance))) == num_groups


def test_groups_of_the_user_decide_also_for_identical_images(make_pictures, planned):
    folder, write = make_pictures(STEMS)
    for number, (_, second) in enumerate(PAIRS):
        write(second, seed=2 * number)
    assert splits_of(planned(folder, group_by=r"/(\d+)\.", **RATIOS)) == BY_HASH


def test_stratification_keeps_identical_images_together(make_pictures, planned):
    folder, write = make_pictures(STEMS)
    for stem in STEMS[:12]:
        write(stem, seed=0)
    found = splits_of(planned(folder, stratify=True, **RATIOS))
    assert len({found[stem] for stem in STEMS[:12]}) == 1
    assert Counter(found.values()) == {"train": 24, "eval": 16}


def test_images_that_cannot_be_read_are_not_compared(make_pictures, planned):
    folder, _ = make_pictures(STEMS)
    for stem in STEMS[:10]:
        (folder / f"JPEGImages/{stem}.jpg").unlink()
    for stem in STEMS[10:20]:
        (folder / f"JPEGImages/{stem}.jpg").write_text(f"no image {stem}")
    assert splits_of(planned(folder, **RATIOS)) == BY_HASH


SHARES = {"train": 0.8, "eval": 0.1, "test": 0.1}


def test_the_fraction_of_a_name_is_stable():
    # sha256("0\\0img_1") starts with febd5f4061ae; divided by 2^48
    assert hash_fraction("img_1", 0) == pytest.approx(0.995077088564, abs=1e-12)
    assert hash_fraction("img_1", 1) != hash_fraction("img_1", 0)


def test_ratios_are_approximately_met():
    counts = Counter(split_by_hash(f"img_{index}", SHARES, seed=0) for index in range(20_000))
    # standard deviation of a share of 0.1 among 20,000: 0.0021
    assert counts["eval"] / 20_000 == pytest.approx(0.1, abs=0.01)
    assert counts["test"] / 20_000 == pytest.approx(0.1, abs=0.01)


def test_rounded_ratios_still_assign_every_fraction():
    thirds = {"a": 0.1, "b": 0.2, "c": 0.7 - 1e-9}
    assert {split_by_hash(str(index), thirds, seed=3) for index in range(200)} == {"a", "b", "c"}


def test_each_stratum_is_divided_by_the_ratios():
    groups = [(f"{stratum}-{index}", stratum, 1) for stratum in range(3) for index in range(50)]
    found = defaultdict(Counter)
    for (_, stratum, _), (_, split) in zip(groups, split_stratified(groups, SHARES), strict=True):
        found[stratum][split] += 1
    assert all(counts == {"train": 40, "eval": 5, "test": 5} for counts in found.values())


def test_strata_with_one_group_do_not_all_go_to_the_largest_split():
    groups = [(str(stratum), stratum, 1) for stratum in range(40)]
    counts = Counter(split for _, split in split_stratified(groups, SHARES))
    assert counts == {"train": 32, "eval": 4, "test": 4}


def test_groups_count_by_their_size():
    groups = [("big", 0, 80), *((str(index), 0, 1) for index in range(20))]
    splits = dict(split_stratified(groups, SHARES))
    assert splits["big"] == "train"
    assert Counter(splits.values())["train"] == 1
