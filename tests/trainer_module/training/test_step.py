import contextlib
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import training_parts as parts
from device_process import ROOT, start_on_devices, wait_for_success

from detloom.schemas.errors import InputError
from detloom.schemas.model.network import L2Regularizer
from detloom.schemas.model.optimizers import (
    ClipByGlobalNorm,
    ConstantLearningRate,
    MomentumOptimizer,
    MovingAverage,
    RmsPropOptimizer,
)
from detloom.schemas.presets.presets import find_preset
from detloom.schemas.reading.typed_dict import to_canonical_json
from detloom.trainer_module.layers.fused_batch_norm import FusedBatchNorm
from detloom.trainer_module.training import step
from detloom.trainer_module.training.step import TrainSteps

_HERE = Path(__file__).parent

RATE = ConstantLearningRate(learning_rate=0.5)
DESCENT = MomentumOptimizer(learning_rate=RATE, momentum=0.0)
DESCENT_ON_FIXED_STATISTICS = {"train.optimizer": DESCENT, "model.freeze_batchnorm": True}


@pytest.fixture
def config(one_level_config, eager):
    """A configuration for tests with eager execution."""
    return one_level_config


def all_state(steps):
    averages = steps.averaged_weights.averages if steps.averaged_weights else []
    state = [*steps.detector.network.weights, *steps.optimizer.variables, *averages, *steps.state.values()]
    return [variable.numpy() for variable in state]


def with_nan(config, batch):
    batches = parts.make_batches(config)
    batches["image"][batch, 0, 3, 3, 0] = math.nan
    return batches


def test_step_updates_weights_statistics_averages_and_counters(config, changed):
    steps, iterator = parts.make_steps(changed(config, {"train.optimizer.learning_rate": RATE}))
    before, averages = parts.weights_of(steps), [each.numpy() for each in steps.averaged_weights.averages]
    result = steps.run(iterator, 2)
    assert (result.num_steps, result.is_finite) == (2, True)
    assert int(steps.optimizer.iterations.numpy()) == 2
    assert int(steps.state["num_boxes_dropped"].numpy()) == 4  # one per image, two images per batch
    assert not any(map(np.array_equal, before, parts.weights_of(steps)))
    assert not any(map(np.array_equal, averages, steps.averaged_weights.averages))
    assert 0 < result.input_seconds < result.seconds
    expected = ["loss", "class_loss", "box_loss", "regularization_loss", "learning_rate", "gradient_norm"]
    assert list(result.numbers) == expected


@pytest.mark.nightly
def test_input_seconds_exclude_the_step_on_one_core(tmp_path, small_config):
    """TensorFlow with a single thread could read the clock after the step."""
    path = tmp_path / "config.json"
    path.write_text(to_canonical_json(small_config), encoding="utf-8")
    command = [sys.executable, str(_HERE / "one_core.py"), str(path)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests/support'}"}
    share = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, text=True).stdout
    assert 0 < float(share) < 0.3


@pytest.mark.parametrize("counted", [True, False])
def test_regularization_is_added_to_the_loss_if_configured(config, changed, counted):
    penalty = {"model.box_predictor.conv_hyperparams.regularizer": L2Regularizer(weight=1.0)}
    steps, iterator = parts.make_steps(changed(config, {**penalty, "train.add_regularization_loss": counted}))
    expected = sum(float(penalty) for penalty in steps.detector.network.losses) if counted else 0.0
    numbers = steps.run(iterator, 1).numbers
    assert numbers["regularization_loss"] == pytest.approx(expected)
    total = numbers["class_loss"] + numbers["box_loss"] + numbers["regularization_loss"]
    assert numbers["loss"] == pytest.approx(total, rel=1e-5)


def moved(config, rate_factor=1.0):
    """Return the length of the weight update of one step, and the numbers."""
    steps, iterator = parts.make_steps(config)
    steps.rate_factor.assign(rate_factor)
    variables = steps.trained.variables
    before = [variable.numpy() for variable in variables]
    numbers = steps.run(iterator, 1).numbers
    updates = [variable.numpy() - value for variable, value in zip(variables, before, strict=True)]
    return math.sqrt(sum(np.sum(np.square(update, dtype=np.float64)) for update in updates)), numbers


def test_gradients_are_clipped_and_the_norm_before_clipping_is_reported(config, changed):
    """Plain descent at rate 0.5: the update is half of the clipped gradient; at half the rate, a quarter."""
    clipping = ClipByGlobalNorm(norm=0.01)
    clipped = changed(config, {"train.optimizer": DESCENT, "train.gradient_clipping": clipping})
    length, numbers = moved(clipped)
    assert length == pytest.approx(0.005, rel=1e-3)
    assert numbers["gradient_norm"] > 0.1
    assert numbers["learning_rate"] == 0.5
    length, numbers = moved(clipped, rate_factor=0.5)
    assert length == pytest.approx(0.0025, rel=1e-3)
    assert numbers["learning_rate"] == 0.25


def test_gradient_norm_per_variable_is_reported_if_configured(config, changed):
    steps, iterator = parts.make_steps(changed(config, {"train.monitoring.gradient_norms": True}))
    numbers = steps.run(iterator, 1).numbers
    norms = {name: value for name, value in numbers.items() if name.startswith("gradient_norm/")}
    assert set(norms) == {f"gradient_norm/{path}" for path in steps.trained.by_path}
    assert math.hypot(*norms.values()) == pytest.approx(numbers["gradient_norm"], rel=1e-5)


def assert_equal(values, expected):
    for value, other in zip(values, expected, strict=True):
        np.testing.assert_array_equal(value, other)


@pytest.mark.parametrize(("on_accelerator", "precision"), [(False, "float32"), (True, "float16")])
def test_nonfinite_step_and_the_step_started_after_it_change_nothing(
    config, changed, monkeypatch, on_accelerator, precision
):
    monkeypatch.setattr(step, "has_accelerator", lambda: on_accelerator)
    config = changed(config, {"train.precision": precision})
    one, same = parts.make_steps(config)
    good = one.run(same, 1)
    if precision == "float16":  # a step that is not finite halves it
        one.state["loss_scale"].assign(one.state["loss_scale"] / 2)
        one.state["num_good_steps"].assign(0)
    expected = all_state(one)
    batches = with_nan(config, batch=1)
    steps, iterator = parts.make_steps(config, batches=batches)
    result = steps.run(iterator, 4)
    assert (result.num_steps, result.is_finite) == (2, False)
    assert result.numbers["loss"] == good.numbers["loss"]  # of the applied step
    assert_equal(all_state(steps), expected)
    np.testing.assert_array_equal(next(iterator)["image"], batches["image"][0])  # the third step was started


def test_updates_are_the_same_on_accelerators(config, monkeypatch):
    steps, iterator = parts.make_steps(config)
    steps.run(iterator, 2)
    expected = all_state(steps)
    monkeypatch.setattr(step, "has_accelerator", lambda: True)
    others, iterator = parts.make_steps(config)
    others.run(iterator, 2)
    assert_equal(all_state(others), expected)


def test_statistics_of_batch_norm_are_averaged_on_request(config, changed):
    """With a decay of 0.5, the average is the mean of the values before and after the step."""
    average = MovingAverage(decay=0.5, dynamic=False, statistics=True)
    steps, iterator = parts.make_steps(changed(config, {"train.moving_average": average}))
    before = {path: variable.numpy() for path, variable in steps.averaged_by_path.items()}
    assert any(path.endswith("/moving_mean") for path in before)
    steps.run(iterator, 1)
    for (path, variable), mean in zip(steps.averaged_by_path.items(), steps.averaged_weights.averages, strict=True):
        np.testing.assert_allclose(mean, (before[path] + variable.numpy()) / 2, atol=1e-6)


def test_infinite_batch_norm_statistics_make_a_step_nonfinite(config):
    """A variance above 3e38 normalizes the images to 0, so loss and gradients are finite."""
    batches = parts.make_batches(config)
    batches["image"][0] *= 1e21
    steps, iterator = parts.make_steps(config, batches=batches)
    before = all_state(steps)
    result = steps.run(iterator, 1)
    assert (result.num_steps, result.is_finite) == (1, False)
    assert math.isfinite(result.numbers["loss"])
    assert_equal(all_state(steps), before)


def test_numbers_of_the_last_step_are_reported_if_no_step_was_finite(config):
    steps, iterator = parts.make_steps(config, batches=with_nan(config, batch=0))
    result = steps.run(iterator, 3)
    assert (result.num_steps, result.is_finite) == (1, False)
    assert math.isnan(result.numbers["loss"])


def test_skipped_batch_only_counts_a_step(config):
    steps, iterator = parts.make_steps(config, batches=with_nan(config, batch=0))
    before = parts.weights_of(steps)
    steps.skip(iterator)
    assert int(steps.optimizer.iterations.numpy()) == 1
    assert_equal(parts.weights_of(steps), before)
    assert steps.run(iterator, 1).is_finite


def test_stop_ends_the_call_after_the_current_step(config):
    steps, iterator = parts.make_steps(config)
    steps.stop.assign(True)
    assert steps.run(iterator, 3).num_steps == 1


def test_gradient_accumulation_equals_the_step_on_the_whole_batch(config, changed):
    """Batch norm uses its moving statistics, so images are independent of each other."""
    penalty = {"model.box_predictor.conv_hyperparams.regularizer": L2Regularizer(weight=1.0)}
    whole = changed(
        config, {"model.freeze_batchnorm": True, "train.batch_size": 4, "train.optimizer": DESCENT, **penalty}
    )
    numbers, weights = [], []
    for num_parts in (1, 2):
        steps, iterator = parts.make_steps(changed(whole, {"train.gradient_accumulation_steps": num_parts}))
        numbers.append(steps.run(iterator, 2).numbers)
        weights.append(parts.weights_of(steps))
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-5)
    for one, other in zip(*weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.nightly
def test_gradients_of_a_whole_network_accumulate_in_a_compiled_loop(changed):
    """Grappler optimizes only graphs of this size in the way that once failed."""
    preset = find_preset("ssd_mobilenet_v2_320x320").config
    optimizer = RmsPropOptimizer(learning_rate=ConstantLearningRate(learning_rate=0.001))
    settings = {"train.optimizer": optimizer, "train.batch_size": 8, "train.gradient_accumulation_steps": 2}
    steps, iterator = parts.make_steps(changed(preset, settings))
    assert steps.run(iterator, 3).num_steps == 3


def test_batch_norm_updates_its_statistics_part_by_part(config, changed):
    in_parts = changed(config, {"train.batch_size": 4, "train.gradient_accumulation_steps": 2})
    steps, iterator = parts.make_steps(in_parts)
    network = steps.detector.network
    features = keras.Model(network.input, network.get_layer("Conv1").output)
    images = parts.make_batches(in_parts)["image"][0] / 127.5 - 1.0
    first, second = (np.asarray(features(images[rows])).mean((0, 1, 2)) for rows in (slice(2), slice(2, 4)))
    steps.run(iterator, 1)
    # decay 0.9, starting at 0
    expected = 0.9 * (0.1 * first) + 0.1 * second
    np.testing.assert_allclose(network.get_layer("bn_Conv1").moving_mean, expected, rtol=1e-4, atol=1e-6)


def test_float16_overflow_halves_the_loss_scale_and_counts_the_step(config, changed):
    half = changed(config, {"train.precision": "float16"})
    steps, iterator = parts.make_steps(half)
    before = parts.weights_of(steps)
    steps.state["loss_scale"].assign(2.0**100)
    result = steps.run(iterator, 1)
    assert (result.num_steps, result.is_finite) == (1, True)
    assert int(steps.optimizer.iterations.numpy()) == 1
    assert float(steps.state["loss_scale"].numpy()) == 2.0**99
    assert_equal(parts.weights_of(steps), before)
    steps.state["loss_scale"].assign(8.0)
    result = steps.run(iterator, 1)
    assert result.numbers["loss_scale"] == 8.0
    assert not all(map(np.array_equal, before, parts.weights_of(steps)))


def test_nonfinite_loss_is_not_attributed_to_the_loss_scale(config, changed):
    half = changed(config, {"train.precision": "float16"})
    steps, iterator = parts.make_steps(half, batches=with_nan(half, batch=0))
    assert not steps.run(iterator, 1).is_finite
    assert float(steps.state["loss_scale"].numpy()) == 2.0**14


@pytest.mark.slow  # compilation
def test_compiled_steps_equal_eager_steps_and_use_one_function_for_any_number(one_level_config, changed):
    """Plain descent, because other optimizers amplify rounding errors of gradients near 0."""
    config = changed(one_level_config, DESCENT_ON_FIXED_STATISTICS)
    steps, iterator = parts.make_steps(config)
    num_steps = [steps.run(iterator, 2).num_steps]
    weights = parts.weights_of(steps)
    num_steps += [steps.run(iterator, count).num_steps for count in (1, 3)]
    assert (num_steps, int(steps.optimizer.iterations.numpy())) == ([2, 1, 3], 6)
    assert steps._run.experimental_get_tracing_count() == 1
    steps, iterator = parts.make_steps(changed(config, {"train.debug": True}))
    steps.run(iterator, 2)
    for one, other in zip(weights, parts.weights_of(steps), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("num_parts", "on_accelerator"),
    [pytest.param(2, True, marks=pytest.mark.slow), pytest.param(1, False, marks=pytest.mark.nightly)],
)
def test_whole_step_compiles_with_xla(one_level_config, changed, monkeypatch, num_parts, on_accelerator):
    monkeypatch.setattr(step, "has_accelerator", lambda: on_accelerator)
    settings = {"train.gradient_accumulation_steps": num_parts, "train.optimizer": DESCENT}
    numbers, weights = [], []
    for mode in ({"train.debug": True}, {"train.jit_compile": True}):
        steps, iterator = parts.make_steps(changed(one_level_config, {**settings, **mode}))
        result = steps.run(iterator, 1)
        assert result.is_finite
        numbers.append(result.numbers)
        weights.append(parts.weights_of(steps))
    assert numbers[1] == pytest.approx(numbers[0], rel=1e-3)
    for one, other in zip(*weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-2, atol=1e-2)


@pytest.fixture(scope="module")
def replicas(tmp_path_factory, one_level_config, changed):
    """The results of `two_replicas.py`: arrays by run."""
    folder = tmp_path_factory.mktemp("replicas")
    penalty = {"model.box_predictor.conv_hyperparams.regularizer": L2Regularizer(weight=0.1)}
    settings = {"model.freeze_batchnorm": True, "train.batch_size": 4, "train.debug": True, **penalty}
    config = changed(one_level_config, settings)
    (folder / "config.json").write_text(to_canonical_json(config), encoding="utf-8")
    arguments = (folder / "config.json", folder / "results.npz")
    wait_for_success(start_on_devices(_HERE / "two_replicas.py", *arguments, num_cpus=2))
    with np.load(folder / "results.npz") as arrays:
        runs: dict[str, dict[str, np.ndarray]] = {}
        for key in arrays:
            run, _, name = key.partition(".")
            runs.setdefault(run, {})[name] = arrays[key]
        return runs


@pytest.mark.slow
@pytest.mark.parametrize(("run", "atol"), [("two", 1e-6), ("two_in_parts", 1e-6), ("two_compiled", 1e-3)])
def test_two_replicas_give_the_weights_of_one_device(replicas, run, atol):
    """XLA sums in another order, and AdamW enlarges the differences of gradients near 0."""
    one, other = replicas["one"], replicas[run]
    for name in ("weights", "averaged"):
        np.testing.assert_allclose(other[name], one[name], rtol=1e-6, atol=atol)
    np.testing.assert_allclose(other["numbers"], one["numbers"], rtol=1e-5 if atol == 1e-6 else 1e-3)
    np.testing.assert_array_equal(other["counts"], one["counts"])
    assert one["counts"].tolist() == [3, 12]
    assert other["copies_differ"] == 0


@pytest.mark.slow
def test_replicas_draw_different_dropout_masks_from_one_stored_seed(replicas):
    one, two = replicas["drop_one"], replicas["drop_two"]
    # Equal images with equal masks would give the loss of one device that gets them once.
    assert abs(two["loss"] - one["loss"]) > 1e-5 * one["loss"]
    assert one["seeds"].shape[1:] == two["seeds"].shape[1:]
    np.testing.assert_array_equal(two["seeds"], np.concatenate([one["seeds"]] * 2))
    assert set(one["seeds"][..., 1].ravel()) != {0}  # masks were drawn


@pytest.mark.slow
def test_synchronized_batch_norm_on_two_replicas_equals_one_device(replicas):
    one, two = replicas["norm_one"], replicas["norm_two"]
    for name, atol in (("output", 1e-4), ("by_inputs", 1e-3)):
        np.testing.assert_allclose(two[name], one[name], rtol=1e-4, atol=atol)
    # Sums of many terms that cancel, with magnitudes up to 1,600: without AVX-512, oneDNN's rounding errors reach 0.05.
    atol = 2e-2 if "avx512f" in Path("/proc/cpuinfo").read_text(encoding="utf-8") else 0.16
    np.testing.assert_allclose(two["by_variables"], one["by_variables"], rtol=1e-4, atol=atol)
    np.testing.assert_allclose(two["statistics"], one["statistics"], rtol=1e-5)


@pytest.mark.parametrize(("setting", "value"), [("gradient_accumulation_steps", 2), ("jit_compile", True)])
@pytest.mark.parametrize("num_replicas", [1, 2])
def test_synchronized_batch_norm_on_replicas_refuses(one_level_config, changed, setting, value, num_replicas):
    train = changed(one_level_config.train, {setting: value})
    steps = SimpleNamespace(
        config=train,
        num_parts=train.gradient_accumulation_steps,
        detector=SimpleNamespace(network=SimpleNamespace(layers=[FusedBatchNorm(synchronized=True)])),
        strategy=SimpleNamespace(num_replicas_in_sync=num_replicas),
    )
    refusal = pytest.raises(InputError, match=rf"train\.{setting}: got {str(value).lower()}")
    with refusal if num_replicas == 2 else contextlib.nullcontext():
        TrainSteps._check_sync_batch_norm(steps)


@pytest.mark.parametrize(("jit_compile", "is_refused"), [(True, True), ("auto", False)])
def test_compiled_max_pooling_is_refused_with_deterministic_operations(
    one_level_config, changed, jit_compile, is_refused
):
    image = keras.Input((8, 8, 3))
    inner = keras.Model(image, keras.layers.MaxPooling2D(name="pool")(image))
    steps = SimpleNamespace(
        config=changed(one_level_config.train, {"deterministic": True, "jit_compile": jit_compile}),
        detector=SimpleNamespace(network=keras.Model(image, inner(image))),
    )
    with pytest.raises(InputError, match=r"layer pool") if is_refused else contextlib.nullcontext():
        TrainSteps._check_max_pooling(steps)
