import json
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from detloom.schemas.errors import InputError
from detloom.schemas.model.augmentations import RandomHorizontalFlip
from detloom.schemas.model.config import Train
from detloom.schemas.model.crop_augmentations import RandomCropImage
from detloom.schemas.model.optimizers import AdamWOptimizer, CosineDecayLearningRate
from detloom.schemas.reading.typed_dict import from_dict, from_json, show_value, to_canonical_json, to_dict


@dataclass(frozen=True, kw_only=True)
class Inner:
    ratio: float = 0.5


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str
    count: int = 1
    kind: Literal["a", "b"] = "a"
    inner: Inner = Inner()
    limit: float | None = None
    sizes: tuple[int, ...] = ()
    labels: dict[str, str] | None = None


def build(data: Any) -> Outer:
    return from_dict(Outer, data, locate=lambda path: "run.yaml:7")


def make_train() -> Train:
    return Train(
        num_steps=10,
        optimizer=AdamWOptimizer(learning_rate=CosineDecayLearningRate()),
        augmentations=(RandomHorizontalFlip(), RandomCropImage(min_area=0.5)),
    )


def test_canonical_json_round_trips_and_does_not_depend_on_the_order_of_keys():
    assert from_json(Train, to_canonical_json(make_train())) == make_train()
    plain = to_dict(make_train())
    backwards = json.loads(json.dumps(plain, sort_keys=True), object_pairs_hook=lambda pairs: dict(reversed(pairs)))
    assert to_canonical_json(from_dict(Train, backwards, locate=str)) == to_canonical_json(make_train())


def test_every_kind_of_field_is_converted():
    outer = build({"name": "n", "count": 2, "kind": "b", "inner": {"ratio": 1}, "limit": 3, "sizes": [1, 2]})
    assert outer == Outer(name="n", count=2, kind="b", inner=Inner(ratio=1.0), limit=3.0, sizes=(1, 2))
    assert build({"name": "n", "inner": {"ratio": "1e-3"}}).inner.ratio == 0.001  # YAML reads it as a text


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"name": "n", "cuont": 2}, r"run\.yaml:7: cuont: unknown key.*Did you mean 'count'\?"),
        ({"count": 2}, "key 'name' is missing"),
        ({"name": 3}, "name: got 3, allowed: text"),
        ({"name": "n", "count": True}, "count: got true, allowed: a whole number"),
        ({"name": "n", "count": 1.5}, "count: got 1.5, allowed: a whole number"),
        ({"name": "n", "count": 1e30}, "count: got a number of more than 64 bits, allowed: a number of at most 64"),
        ({"name": "n", "kind": "c"}, "kind: got 'c', allowed: 'a', 'b'"),
        ({"name": "n", "inner": {"ratio": "much"}}, r"inner\.ratio: got 'much', allowed: a number"),
        (
            {"name": "n", "inner": {"ratio": 10**400}},
            r"inner\.ratio: got a number of more than 64 bits, allowed: a number of at most 64",
        ),
        ({"name": "n", "inner": {"ratio": float("nan")}}, r"inner\.ratio: got nan, allowed"),
        ({"name": "n", "inner": {"ratio": 3.5e38}}, r"inner\.ratio: got 3\.5e\+38, allowed"),
        ({"name": "n", "sizes": [1, "x"]}, r"sizes\[1\]: got 'x', allowed: a whole number"),
        ({"name": "n", "sizes": "12"}, "sizes: got '12', allowed: a list"),
        ({"name": "n", "inner": 5}, "inner: got 5, allowed: a mapping with keys ratio"),
        ([1], r"got \[1\], allowed: a mapping"),
    ],
)
def test_error_names_location_key_and_allowed_values(data, message):
    with pytest.raises(InputError, match=message):
        build(data)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        ({"learning_rate": {}}, r"optimizer: got no 'type' key, allowed: MomentumOptimizer, RmsPropOptimizer"),
        *(({"type": tag}, r"optimizer: got type .*, allowed: Momentum") for tag in (["AdamWOptimizer"], {"a": 1}, 3)),
        (
            {"type": "AdamWOptimizer", "momentum": 0.9},
            r"optimizer\.momentum: unknown key of type AdamWOptimizer, allowed: ",
        ),
        (
            {"type": "AdamOptimizer", "learning_rate": {"type": "ConstantLearninRate"}},
            r"learning_rate: got type 'ConstantL.*Did you mean 'ConstantLearningRate'\?",
        ),
    ],
)
def test_a_wrong_member_of_a_union_is_named(optimizer, message):
    with pytest.raises(InputError, match=message):
        from_dict(Train, {"num_steps": 1, "optimizer": optimizer}, locate=lambda _: "x")


def test_value_out_of_range_is_located():
    data = {"num_steps": 1, "optimizer": {"type": "AdamOptimizer", "learning_rate": {"type": "ConstantLearningRate"}}}
    data["optimizer"]["epsilon"] = 0
    with pytest.raises(InputError, match=r"^optimizer/epsilon: optimizer\.epsilon: got 0\.0, allowed: above 0\.$"):
        from_dict(Train, data, locate=lambda path: "/".join(map(str, path)))


@pytest.mark.parametrize(
    ("path", "value", "shown"),
    [
        (("smtp", "password"), "hunter2", "(hidden)"),
        (("api_key",), 5, "(hidden)"),
        (("push_to",), "https://ann:hunter2@models", "'https://(hidden)@models'"),
        (("push_to",), "/home/s3:/ann:hunter2@models", "'/home/s3:/(hidden)@models'"),
        (("push_to",), "https://models?sig=hunter2&x=1", "'https://models?sig=(hidden)&x=(hidden)'"),
        (("name",), "a\x1b[1m", "'a\\x1b[1m'"),
        (("name",), "x" * 200, "'" + "x" * 119 + "..."),
        (("train", "batch_size"), 8, "8"),
        (("train", "debug"), False, "false"),
        (("train", "gradient_clipping"), None, "null"),
    ],
)
def test_shown_values_are_short_and_without_secrets(path, value, shown):
    assert show_value(path, value) == shown
