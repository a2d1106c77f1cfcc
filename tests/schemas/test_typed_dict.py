import json
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from detloom.schemas.config import AdamW, CosineRate, HorizontalFlip, RandomCrop, Ssd, TrainerConfig, Training
from detloom.schemas.errors import InputError
from detloom.schemas.typed_dict import from_dict, from_json, to_canonical_json, to_dict


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


def make_config() -> TrainerConfig:
    training = Training(
        batch_size=8,
        num_steps=10,
        optimizer=AdamW(rate=CosineRate(learning_rate=0.001)),
        augmentations=(HorizontalFlip(), RandomCrop(min_area=0.5)),
    )
    return TrainerConfig(detector=Ssd(), training=training)


def test_canonical_json_round_trips_a_tree_with_unions():
    assert from_json(TrainerConfig, to_canonical_json(make_config())) == make_config()


def test_canonical_json_does_not_depend_on_the_order_of_keys():
    plain = to_dict(make_config())
    backwards = json.loads(json.dumps(plain, sort_keys=True), object_pairs_hook=lambda pairs: dict(reversed(pairs)))
    assert to_canonical_json(from_dict(TrainerConfig, backwards, locate=str)) == to_canonical_json(make_config())


def test_every_kind_of_field_is_read():
    outer = build({"name": "n", "count": 2, "kind": "b", "inner": {"ratio": 1}, "limit": 3, "sizes": [1, 2]})
    assert outer == Outer(name="n", count=2, kind="b", inner=Inner(ratio=1.0), limit=3.0, sizes=(1, 2))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"name": "n", "cuont": 2}, r"run\.yaml:7: cuont: unknown key.*Did you mean 'count'\?"),
        ({"count": 2}, "key 'name' is missing"),
        ({"name": 3}, "name: got 3, allowed: str"),
        ({"name": "n", "count": True}, "count: got True, allowed: int"),
        ({"name": "n", "count": 1.5}, "count: got 1.5, allowed: int"),
        ({"name": "n", "kind": "c"}, "kind: got 'c', allowed: 'a', 'b'"),
        ({"name": "n", "inner": {"ratio": "1e-3"}}, r"inner\.ratio: got '1e-3'.*write 1\.0e-3"),
        ({"name": "n", "inner": {"ratio": float("nan")}}, r"inner\.ratio: got nan, allowed: a finite number"),
        ({"name": "n", "sizes": [1, "x"]}, r"sizes\[1\]: got 'x', allowed: int"),
        ({"name": "n", "sizes": "12"}, "sizes: got '12', allowed: a list"),
        ({"name": "n", "inner": 5}, "inner: got 5, allowed: a mapping with keys ratio"),
        ([1], r"got \[1\], allowed: a mapping"),
    ],
)
def test_a_mistake_names_place_key_and_what_is_allowed(data, message):
    with pytest.raises(InputError, match=message):
        build(data)


def test_a_union_without_type_lists_its_members():
    data = {"batch_size": 1, "num_steps": 1, "optimizer": {"rate": {"type": "ConstantRate", "learning_rate": 1}}}
    with pytest.raises(InputError, match=r"optimizer: got no 'type' key, allowed: Momentum, AdamW"):
        from_dict(Training, data, locate=lambda _: "x")


@pytest.mark.parametrize("tag", [["AdamW"], {"AdamW": 1}, 3])
def test_a_type_that_is_no_text_is_refused(tag):
    with pytest.raises(InputError, match=r"optimizer: got type .*, allowed: Momentum, AdamW"):
        from_dict(Training, {"batch_size": 1, "num_steps": 1, "optimizer": {"type": tag}}, locate=lambda _: "x")


def test_a_union_with_a_misspelt_type_gets_a_hint():
    rate = {"type": "CosinRate", "learning_rate": 1.0}
    with pytest.raises(InputError, match=r"optimizer\.rate: got type 'CosinRate'.*Did you mean 'CosineRate'\?"):
        from_dict(
            Training,
            {"batch_size": 1, "num_steps": 1, "optimizer": {"type": "AdamW", "rate": rate}},
            locate=lambda _: "x",
        )


def test_a_value_out_of_range_is_refused_with_its_key():
    with pytest.raises(InputError, match=r"head: class_prior: got 2\.0, allowed: between 0 and 1"):
        from_dict(Ssd, {"head": {"class_prior": 2}}, locate=lambda _: "x")
