"""Formats with files of many images, and Supervisely: what each tool writes, and damage in it."""

import base64
import json
import zlib

import pytest
from labelled_data import encode_image, png_of_size, write_files

from detloom.components.example_gen.data_folder import DataFolder
from detloom.components.example_gen.sources import formats, image_entries
from detloom.components.example_gen.sources.source_record import SourceRecord
from detloom.schemas.contracts.rejects import Reason, Reject
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.data import IngestSettings

TF_HEADER = "filename,width,height,class,xmin,ymin,xmax,ymax\n"
POLYGON = [[1.0, 2.0, 5.0, 2.0, 3.0, 9.0]]


def read(tmp_path, data_format, files, **settings):
    """Return the records and the rejects of a folder, with images a.jpg to d.jpg in images/."""
    write_files(tmp_path, {f"images/{name}.jpg": encode_image() for name in "abcd"} | files)
    folder, params = DataFolder(str(tmp_path)), IngestSettings(**settings)
    assert formats.detect_format(folder)[0] == data_format
    chunks = formats.list_chunks(data_format, folder, "", "", params)
    items = [item for chunk in chunks for item in formats.read_chunk(data_format, folder, chunk, params)]
    return [x for x in items if isinstance(x, SourceRecord)], [x for x in items if isinstance(x, Reject)]


def via(shape, attributes=None, **more):
    region = {"shape_attributes": shape, "region_attributes": {"label": "cat"} if attributes is None else attributes}
    return {"a.json": json.dumps({"a.jpg9": {"filename": "a.jpg", "size": 9, "regions": [region], **more}})}


def task(value, **more):
    region = {"value": value, "type": "rectanglelabels", "original_width": 200, "original_height": 100, **more}
    return {"a.json": json.dumps([{"data": {"image": "a.jpg"}, "annotations": [{"result": [region]}]}])}


def rect(**more):
    return {"x": 10, "y": 20, "width": 5, "height": 10, "rectanglelabels": ["cat"], **more}


def sly(kind, **more):
    item = {"geometryType": kind, "classTitle": "cat", **more}
    return {"ds/ann/a.jpg.json": json.dumps({"size": {"height": 40, "width": 60}, "objects": [item]})}


def bitmap(width, height):
    data = base64.b64encode(zlib.compress(png_of_size(width, height, zlib.compress(b""))))
    return sly("bitmap", bitmap={"origin": [3, 4], "data": data.decode()})


VIA_RECT = {"name": "rect", "x": 1, "y": 2, "width": 3, "height": 4}
VIA_CSV = "#filename,file_size,file_attributes,region_count,region_id,region_shape_attributes,region_attributes\n"
VIA_ROW = 'a.jpg,9,{},1,0,"{""name"":""rect"",""x"":1,""y"":2,""width"":3,""height"":4}","{""label"":""cat""}"\n'
CORNERS = {"exterior": [[5, 6], [1, 2]], "interior": []}
TRIANGLE = {"all_points_x": [1, 5, 3], "all_points_y": [2, 2, 9]}
# format, files, and the only box.
BOXES = {
    "tf": ("csv", {"data/x.csv": TF_HEADER + "a.jpg,60,40,cat,1,2,4,6\n"}, (1, 2, 4, 6)),
    "other names": ("csv", {"x.csv": "Image Name,x_min,Y-Min,x2,y2,label\na.jpg,1,2.0,4,6,cat\n"}, (1, 2, 4, 6)),
    "RetinaNet": ("csv", {"train/_annotations.csv": "images/a.jpg,1,2,4,6,cat\r\nb.jpg,,,,,\r\n"}, (1, 2, 4, 6)),
    "makesense": ("csv", {"labels_x.csv": "cat,1,2,3,4,a.jpg,60,40\n"}, (1, 2, 4, 6)),
    "makesense with a header": (
        "csv",
        {
            "x.csv": "label_name,bbox_x,bbox_y,bbox_width,bbox_height,image_name,image_width,image_height\n"
            "cat,1,2,3,4,a.jpg,60,40"
        },
        (1, 2, 4, 6),
    ),
    "byte order mark, other folder": (
        "csv",
        {"x.csv": "\ufeff" + TF_HEADER + r'"C:\me\a.jpg",60,40,cat,1,2,4,6'},
        (1, 2, 4, 6),
    ),
    "VIA": ("via", via(VIA_RECT), (1, 2, 4, 6)),
    "VIA 1": (
        "via",
        {
            "a.json": json.dumps(
                {
                    "k": {
                        "filename": "a.jpg",
                        "regions": {"0": json.loads(via(VIA_RECT)["a.json"])["a.jpg9"]["regions"][0]},
                    }
                }
            )
        },
        (1, 2, 4, 6),
    ),
    "VIA circle": ("via", via({"name": "circle", "cx": 9, "cy": 8, "r": 2}), (7, 6, 11, 10)),
    "VIA ellipse": ("via", via({"name": "ellipse", "cx": 9, "cy": 8, "rx": 2, "ry": 1}), (7, 7, 11, 9)),
    "VIA closed line": (
        "via",
        via({"name": "polyline", "all_points_x": [1, 5, 1], "all_points_y": [2, 9, 2]}),
        (1, 2, 5, 9),
    ),
    "VIA only attribute": ("via", via(VIA_RECT, {"Animal": " cat "}), (1, 2, 4, 6)),
    "VIA checkbox": ("via", via(VIA_RECT, {"type": {"dog": False, "cat": True}, "note": "x"}), (1, 2, 4, 6)),
    "VIA CSV": ("via", {"a.csv": VIA_CSV + VIA_ROW + "b.jpg,9,{},0,0,{},{}\n"}, (1, 2, 4, 6)),
    "Label Studio": ("label_studio", task(rect()), (20, 20, 30, 30)),
    "Label Studio ellipse": (
        "label_studio",
        task({"x": 10, "y": 20, "radiusX": 1, "radiusY": 5, "ellipselabels": ["cat"]}),
        (18, 15, 22, 25),
    ),
    # 10 x 10 pixels at 20, 20, a quarter turn around that corner
    "Label Studio rotated": ("label_studio", task(rect(rotation=90)), (10, 20, 20, 30)),
    "JSON-MIN": (
        "label_studio",
        {
            "a.json": json.dumps(
                [{"img": "s3://b/x/1f2e3d4c-a.jpg", "id": 1, "tag": [rect(original_width=200, original_height=100)]}]
            )
        },
        (20, 20, 30, 30),
    ),
    "Create ML": (
        "createml",
        {
            "a.json": json.dumps(
                [
                    {
                        "imagefilename": "a.jpg",
                        "annotation": [{"label": "cat", "coordinates": {"x": 4, "y": 6, "width": 2, "height": 4}}],
                    }
                ]
            )
        },
        (3, 4, 5, 8),
    ),
    "Supervisely": ("supervisely", sly("rectangle", points=CORNERS), (1, 2, 5, 6)),
    "Supervisely bitmap": ("supervisely", bitmap(20, 10), (3, 4, 23, 14)),
}


@pytest.mark.parametrize("name", BOXES)
def test_the_box_of_each_tool_is_read(tmp_path, name):
    data_format, files, box = BOXES[name]
    records, rejects = read(tmp_path, data_format, files)
    assert rejects == []
    (item,) = [item for record in records for item in record.objects]
    assert item.class_name == "cat"
    assert item.box_xyxy == pytest.approx(box)
    assert {record.image_path for record in records} <= {"images/a.jpg", "images/b.jpg"}


def test_without_the_size_of_the_image_regions_are_fractions(tmp_path):
    (record,), _ = read(tmp_path, "label_studio", task(rect(), original_width=None))
    assert (record.is_relative, record.declared_hw) == (True, None)
    assert record.objects[0].box_xyxy == pytest.approx((0.1, 0.2, 0.15, 0.3))


@pytest.mark.parametrize(
    ("data_format", "files"),
    [
        ("via", via({"name": "polygon", **TRIANGLE})),
        ("label_studio", task({"points": [[0.5, 2], [2.5, 2], [1.5, 9]], "polygonlabels": ["cat"]})),
        ("supervisely", sly("polygon", points={"exterior": [[1, 2], [5, 2], [3, 9]], "interior": []})),
    ],
)
def test_polygons_become_masks_on_request(tmp_path, data_format, files):
    (record,), _ = read(tmp_path, data_format, files, masks=True)
    assert record.objects[0].mask == POLYGON
    (record,), _ = read(tmp_path, data_format, files)
    assert (record.objects[0].mask, record.objects[0].box_xyxy) == (None, (1, 2, 5, 9))


# format, files, and what is left out
LEFT_OUT = [
    ("via", via({"name": "point", "cx": 1, "cy": 2}), {"point": 1}),
    ("via", via({"name": "polyline", **TRIANGLE}), {"polyline": 1}),
    ("label_studio", task({"choices": ["x"]}, type="choices"), {"choices": 1}),
    (
        "label_studio",
        task({"x": 1, "y": 2, "width": 1, "keypointlabels": ["x"]}, type="keypointlabels"),
        {"keypointlabels": 1},
    ),
    ("supervisely", sly("point", points=CORNERS), {"point": 1}),
]


@pytest.mark.parametrize(("data_format", "files", "kinds"), LEFT_OUT)
def test_marks_without_a_box_are_counted(tmp_path, data_format, files, kinds):
    (record,), rejects = read(tmp_path, data_format, files)
    assert (dict(record.left_out), record.objects, rejects) == (kinds, (), [])


def test_the_newest_annotation_that_was_not_cancelled_counts(tmp_path):
    old, new, skipped = (
        {
            "created_at": f"2024-0{month}",
            "result": [{"value": rect(rectanglelabels=[name])}],
            "was_cancelled": month == 3,
        }
        for month, name in enumerate(("old", "new", "skipped"), 1)
    )
    tasks = [
        {"data": {"image": "a.jpg"}, "annotations": [new, skipped, old]},
        {"data": {"image": "b.jpg"}, "annotations": [skipped]},
    ]
    (record,), (reject,) = read(tmp_path, "label_studio", {"a.json": json.dumps(tasks)})
    assert [item.class_name for item in record.objects] == ["new"]
    assert dict(record.left_out) == {"region of another annotation": 1}
    assert (reject.scope, reject.record_key) == ("record", "[1]")


# format, files, reason, scope, and a part of the detail
DAMAGE = [
    (
        "csv",
        {"a.csv": TF_HEADER + "a.jpg,60,40,cat,1,2,x,6\n"},
        "box",
        "line 2: the class must be text, xmin, ymin, xmax, ymax numbers",
    ),
    ("csv", {"a.csv": TF_HEADER + "a.jpg,60,40,,1,2,3,6\n"}, "box", "line 2: the class"),
    ("csv", {"a.csv": TF_HEADER + "a.jpg,60,40,cat\n"}, "box", "line 2: must have 8 values, got 4"),
    ("csv", {"a.csv": TF_HEADER + ",60,40,cat,1,2,3,6\n"}, "box", "line 2: the image"),
    ("csv", {"a.csv": TF_HEADER + "a" * 200_000}, "box", "line 2: must be UTF-8, shorter than 131072"),
    ("via", via({"name": "rect", "x": 1}), "box", "['a.jpg9'].regions[0]: the numbers x, y, width, height"),
    ("via", via({"name": "polygon", "all_points_x": [1, 2, 3], "all_points_y": [1]}), "box", "three points"),
    ("via", via({"name": "star"}), "box", "'shape_attributes' must be"),
    ("via", via(VIA_RECT, {}), "box", "no class"),
    ("via", via(VIA_RECT, regions=3), "record", "'regions' must be a list"),
    ("via", via(VIA_RECT, filename=[]), "record", "name of the image"),
    ("via", {"a.json": '{"a": {"filename": "a.jpg", "regions": [], "regions": []}}'}, "record", "'regions' twice"),
    ("via", {"a.csv": VIA_CSV + VIA_ROW.replace('""name""', "name")}, "box", "line 2: line 1: not readable as JSON"),
    (
        "via",
        {"a.csv": VIA_CSV + VIA_ROW.replace('"{""label', '"' + "[" * 90_000 + '{""label')},
        "box",
        "nested too deeply",
    ),
    ("label_studio", task(rect(rotation=20), original_width=None), "box", "[0].result[0]: a rotated region"),
    ("label_studio", task({"rle": [1], "format": "rle", "brushlabels": ["cat"]}), "box", "a brush"),
    ("label_studio", task(rect(rectanglelabels=[5])), "box", "labels must be text"),
    ("label_studio", task(rect(), image_rotation=90), "box", "image_rotation is 90"),
    (
        "label_studio",
        {"a.json": '[{"data": {"image": "a.jpg"}, "annotations": [{"result": [7]}]}]'},
        "box",
        "must be an object",
    ),
    (
        "label_studio",
        {"a.json": '[{"data": {"video": "a.mp4"}, "annotations": [{"result": []}]}]'},
        "record",
        "name of the image",
    ),
    (
        "createml",
        {"a.json": '[{"image": "a.jpg", "annotations": [{"label": "cat", "coordinates": [1]}]}]'},
        "box",
        "[0].annotations[0]: the numbers",
    ),
    (
        "createml",
        {"a.json": '[{"image": "a.jpg", "annotations": [{"coordinates": {}}]}]'},
        "box",
        "'label' must be text",
    ),
    ("createml", {"a.json": '[{"image": "a.jpg", "annotations": []}, 7]'}, "record", "[1]: must be an object, got 7"),
    ("supervisely", sly("cuboid"), "box", "objects[0]: geometryType 'cuboid'"),
    ("supervisely", sly("rectangle", classTitle=None), "box", "'classTitle'"),
    ("supervisely", sly("bitmap", bitmap={"origin": [1, 2], "data": "AAAA"}), "box", "'bitmap' must have"),
    ("supervisely", {"ann/a.jpg.json": '{"objects": 3}'}, "record", "'objects' must be a list"),
    ("supervisely", {"ann/a.jpg.json": '{"objects": ['}, "record", "not readable as JSON"),
]


@pytest.mark.parametrize(("data_format", "files", "scope", "detail"), DAMAGE)
def test_damage_is_rejected_with_its_place(tmp_path, data_format, files, scope, detail):
    _, (reject,) = read(tmp_path, data_format, files)
    assert (reject.reason, reject.scope) == (Reason.UNREADABLE_ANNOTATION, scope)
    assert detail in reject.detail
    assert reject.file in files


@pytest.mark.parametrize("name", ["../../outside.jpg", "/etc/outside.jpg", r"..\..\outside.jpg"])
def test_an_image_outside_the_folder_is_rejected(tmp_path, name):
    _, (reject,) = read(tmp_path, "csv", {"a.csv": TF_HEADER + f"{name},60,40,cat,1,2,3,6\n"})
    assert (reject.reason, reject.num_boxes) == (Reason.PATH_OUTSIDE, 1)


@pytest.mark.parametrize(("targets", "images"), [(["right"], ["images/b.jpg"]), (["left", "right"], []), (["x"], [])])
def test_regions_of_a_task_with_two_images_belong_to_the_one_that_they_name(tmp_path, targets, images):
    content = json.loads(task(rect())["a.json"])
    content[0]["data"] = {"left": "a.jpg", "right": "b.jpg"}
    content[0]["annotations"][0]["result"] = [{"value": rect(), "to_name": name} for name in targets]
    records, rejects = read(tmp_path, "label_studio", {"a.json": json.dumps(content)})
    assert [record.image_path for record in records] == images
    assert [f"2 images and regions of {targets}" in reject.detail for reject in rejects] == [True] * (not images)


@pytest.mark.parametrize("other", [{"choices": ["day"]}, {"start": 0, "end": 2, "text": "no", "labels": ["note"]}])
@pytest.mark.parametrize("with_box", [True, False])
def test_regions_that_become_no_object_do_not_decide_which_image_a_task_shows(tmp_path, other, with_box):
    content = json.loads(task(rect(), to_name="image")["a.json"])
    content[0]["data"] = {"image": "a.jpg", "thumb": "b.jpg", "text": "no image"}
    result = content[0]["annotations"][0]["result"]
    result[:] = [*result[: int(with_box)], {"value": other, "to_name": "text"}]
    (record,), _ = read(tmp_path, "label_studio", {"a.json": json.dumps(content)})
    assert (record.image_path, len(record.objects)) == ("images/a.jpg", int(with_box))


def test_too_many_rows_of_an_image_reject_it(tmp_path, monkeypatch):
    monkeypatch.setattr(image_entries, "MAX_OBJECTS_PER_IMAGE", 2)
    _, (reject,) = read(tmp_path, "csv", {"a.csv": TF_HEADER + "a.jpg,60,40,cat,1,2,3,6\n" * 5})
    assert (reject.reason, reject.scope, reject.num_boxes) == (Reason.TOO_MANY_BOXES, "record", 5)


def test_the_only_given_class_is_that_of_regions_without_attributes(tmp_path):
    (record,), _ = read(tmp_path, "via", via(VIA_RECT, {}), classes=("balloon",))
    assert record.objects[0].class_name == "balloon"


@pytest.mark.parametrize("text", ["7", "", '[{"image": "a.jpg", "annotations": []}'])
def test_a_damaged_json_file_is_an_error_naming_it(tmp_path, text):
    folder = DataFolder(str(write_files(tmp_path, {"a.json": text})))
    (chunk,) = formats.list_chunks("createml", folder, "train", "a.json", IngestSettings())
    with pytest.raises(InputError, match=r"a\.json:1: "):
        list(formats.read_chunk("createml", folder, chunk, IngestSettings()))


def test_a_csv_without_the_columns_is_an_error_naming_them(tmp_path):
    folder = DataFolder(str(write_files(tmp_path, {"a.csv": "a,b\n"})))
    (chunk,) = formats.list_chunks("csv", folder, "train", "a.csv", IngestSettings())
    with pytest.raises(InputError, match=r"a\.csv:1: got 'a,b'; looked for .*filename, class"):
        list(formats.read_chunk("csv", folder, chunk, IngestSettings()))


@pytest.mark.parametrize(
    ("data_format", "files", "num_boxes"),
    [
        ("label_studio", {"a.json": json.dumps([{"image": "a.jpg", "label": [rect()], "annotation_id": 1}])}, 1),
        ("label_studio", {"a.json": json.dumps([{"img": "a.jpg", "label": [rect()], "note": ["text"]}])}, 1),
        ("csv", {"x.csv": "image,label,left,bbox_x,bbox_y,bbox_width,bbox_height\na.jpg,cat,0,1,2,3,4\n"}, 1),
        ("via", {"a.json": json.dumps({"_via_1": {"filename": "a.jpg", "size": 1, "regions": []}})}, 0),
    ],
)
def test_unusual_exports_are_read_whole(tmp_path, data_format, files, num_boxes):
    ((record,), rejects) = read(tmp_path, data_format, files)
    assert (len(record.objects), rejects) == (num_boxes, [])


def test_kinds_of_regions_are_words_of_the_tool(tmp_path):
    ((record,), _) = read(tmp_path, "label_studio", task({}, type="\x1b[2J") | {})
    assert record.left_out == (("region without a label", 1),)


def test_all_data_sets_of_a_project_are_read(tmp_path):
    write_files(tmp_path, {f"{part}/ann/a.jpg.json": '{"objects": []}' for part in ("train", "batch_2")})
    _, evidence = formats.detect_format(DataFolder(str(tmp_path)))
    assert evidence.splits == {}
