"""Training steps on any strategy: forward and backward pass, sums over replicas, and an update if all is finite.

The losses and gradients of a step are those of its whole batch. Each replica, and each part of a replica's images
(`gradient_accumulation_steps`), divides by the number of matches in the whole batch, and the results are summed before
gradients are clipped. The number of parts therefore changes no result, except through batch norm, which sees one part
at a time.

The host starts a step while the device computes the one before, so it learns that a step was not finite only when the
next one has been started. That step changes nothing: all changes depend on a flag on the device.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from detloom.schemas.contracts.ground_truth import IMAGE, TRUE_HW
from detloom.schemas.errors import InputError
from detloom.schemas.model.config import Train
from detloom.trainer_module.detectors.detector import Detector
from detloom.trainer_module.layers.fused_batch_norm import FusedBatchNorm
from detloom.trainer_module.runtime.numerics import are_operations_deterministic, has_accelerator
from detloom.trainer_module.runtime.replicas import sum_over_replicas
from detloom.trainer_module.training.gradients import LossScale, clip_gradients, gradient_norms, scale_bias_gradients
from detloom.trainer_module.training.logged_numbers import LoggedNumbers
from detloom.trainer_module.training.optimizers import AveragedWeights, apply_update, build_optimizer
from detloom.trainer_module.weights.freezing import TrainedVariables
from detloom.trainer_module.weights.variable_names import variables_by_path

_Batch = dict[str, tf.Tensor]


@dataclass(frozen=True, kw_only=True)
class StepsResult:
    """Result of several steps.

    Attributes:
        numbers: losses and the gradient norm before clipping, as means over the steps that changed the weights, or the
            values of the last step if none did. Learning rate and loss scale are those of the last step.
        num_steps: executed steps, up to and including one that was not finite; fewer than requested if stopped.
        is_finite: False if the last step gave NaN or infinity. It changed nothing and is not counted in
            `optimizer.iterations`.
        is_stopped: True if `TrainSteps.stop` ended the call; equal on all workers.
        input_seconds: time that the host spent waiting for images; 0 if unknown. On accelerators, the device may have
            been busy at that time.
        seconds: total time, including compilation.
    """

    numbers: dict[str, float]
    num_steps: int
    is_finite: bool
    is_stopped: bool
    input_seconds: float
    seconds: float


class _Progress(NamedTuple):
    """Loop variables of the loop over steps; numbers are those of `LoggedNumbers`.

    Attributes:
        num_started: includes the step that follows one that was not finite.
        is_open: False if the last step but one was not finite or was the last one. The host decides by it, because it
            is known while the device computes the last step.
        is_finite: all steps so far were.
    """

    num_started: tf.Tensor
    is_open: tf.Tensor
    num_steps: tf.Tensor
    num_applied: tf.Tensor
    sums: tf.Tensor
    last: tf.Tensor
    input_seconds: tf.Tensor
    is_finite: tf.Tensor
    is_stopped: tf.Tensor


class _Backward(NamedTuple):
    """Losses and gradients of one replica, or of one part of its images.

    Attributes:
        losses: [number of losses], in the order of `TrainSteps.loss_names`.
        state: new values of the network's non-trainable variables, by index.
    """

    losses: tf.Tensor
    gradients: list[tf.Tensor]
    state: dict[int, tf.Tensor]


def _compiled(function: Callable[..., Any]) -> Any:
    return tf.function(function, jit_compile=True, autograph=False)


def _layers_in(network: Any) -> Iterator[Any]:
    """Yield the layers of a network and of the networks in it."""
    for layer in network.layers:
        yield layer
        yield from _layers_in(layer) if hasattr(layer, "layers") else ()


class TrainSteps:
    """The compiled training steps of one run.

    Attributes:
        state: variables that a checkpoint has to hold in addition to weights, optimizer and averages.
        state_of_loss_scale: those of them that a run in float32 or bfloat16 lacks.
        rate_factor: factor on the scheduled learning rate; set by the caller.
        stop: set from another thread, it ends `run` after the current step (with several workers, after the next two).
        optimizer, averaged_weights: built for the trained variables; the averages start at their current values.
        averaged_by_path: the averaged variables, in the order of the averages.
    """

    def __init__(
        self,
        config: Train,
        detector: Detector,
        trained: TrainedVariables,
        strategy: tf.distribute.Strategy,
    ) -> None:
        """Build the optimizer and create the variables of the steps.

        Raises:
            InputError: for gradient accumulation or compilation with batch norm that is synchronized over several
                replicas, and for deterministic operations where XLA compiles the gradient of max pooling.
        """
        self.config, self.detector, self.trained, self.strategy = config, detector, trained, strategy
        self.num_parts = config.gradient_accumulation_steps
        self._check_sync_batch_norm()
        self._check_max_pooling()
        with tf.device("/cpu:0"):  # the host reads it before each step
            self.stop = tf.Variable(False, trainable=False)
        with strategy.scope():
            self.optimizer = build_optimizer(config.optimizer)
            self.optimizer.build(trained.variables)
            average = config.moving_average
            self.averaged_by_path = dict(trained.by_path)
            if average and average.statistics:
                of_batch_norm = ("/moving_mean", "/moving_variance")
                by_path = variables_by_path(detector.network)
                self.averaged_by_path |= {path: by_path[path] for path in by_path if path.endswith(of_batch_norm)}
            self.averaged_weights = AveragedWeights(average, list(self.averaged_by_path.values())) if average else None
            self.rate_factor = tf.Variable(1.0, trainable=False)
            self.num_boxes_dropped = tf.Variable(0, dtype=tf.int64, trainable=False)
            self.loss_scale = LossScale() if config.precision == "float16" else None
        self.loss_names = (*detector.loss_names, "regularization_loss")
        paths = list(trained.by_path) if config.monitoring.gradient_norms else []
        self.numbers = LoggedNumbers(self.loss_names, paths, has_loss_scale=self.loss_scale is not None)
        self.state_of_loss_scale = self.loss_scale.state if self.loss_scale else {}
        self.state = self._state()
        self._has_clock = not (isinstance(strategy, tf.distribute.TPUStrategy) or are_operations_deterministic())
        self._on_several_workers = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        self._on_accelerator = has_accelerator()
        # TPUStrategy compiles by itself. Sums over replicas are outside of what is compiled.
        is_compiled = config.jit_compile is True and not isinstance(strategy, tf.distribute.TPUStrategy)
        is_alone = strategy.num_replicas_in_sync == 1
        self._of_replica = _compiled(self._replica_step) if is_compiled and is_alone else self._replica_step
        backward = self._backward if self.num_parts == 1 else self._accumulated
        self._whole_backward = _compiled(backward) if is_compiled and not is_alone else backward
        self._run = self._steps if config.debug else tf.function(self._steps, autograph=False)
        self._skip = self._pass_over if config.debug else tf.function(self._pass_over, autograph=False)

    def run(self, iterator: Any, count: int) -> StepsResult:
        """Run up to `count` steps on the next batches."""
        before = time.perf_counter()
        after = self._run(iterator, tf.constant(count))
        seconds = time.perf_counter() - before
        num_applied = int(after.num_applied)
        means = (after.sums / num_applied if num_applied else after.last).numpy()
        return StepsResult(
            numbers=self.numbers.of_steps(means, after.last.numpy()),
            num_steps=int(after.num_steps),
            is_finite=bool(after.is_finite),
            is_stopped=bool(after.is_stopped),
            input_seconds=float(after.input_seconds),
            seconds=seconds,
        )

    def skip(self, iterator: Any) -> None:
        """Consume the next batch and count a step, without any other effect."""
        self._skip(iterator)

    def are_weights_finite(self) -> bool:
        """Return True if no trained weight is NaN or infinite: an update can overflow with a finite gradient."""
        return all(np.isfinite(variable.numpy()).all() for variable in self.trained.variables)

    def _check_sync_batch_norm(self) -> None:
        layers = self.detector.network.layers
        synchronized = any(isinstance(layer, FusedBatchNorm) and layer.synchronized for layer in layers)
        if not synchronized or self.strategy.num_replicas_in_sync == 1:
            return
        where = f"with synchronized batch norm on {self.strategy.num_replicas_in_sync} replicas, allowed"
        advice = "or, if the model has the setting, batch_norm.synchronized to false."
        if self.num_parts > 1:
            raise InputError(
                f"train.gradient_accumulation_steps: got {self.num_parts} {where}: 1; set it to 1, {advice}"
            )
        if self.config.jit_compile is True and not isinstance(self.strategy, tf.distribute.TPUStrategy):
            raise InputError(f"train.jit_compile: got true {where}: false; set it to false, {advice}")

    def _check_max_pooling(self) -> None:
        """Refuse a gradient that XLA does not compile: seen on a CPU, and its message names GPUs."""
        if self.config.debug or not self.config.deterministic or self.config.jit_compile is not True:
            return
        for layer in _layers_in(self.detector.network):
            if isinstance(layer, keras.layers.MaxPooling2D):
                raise InputError(
                    "train.deterministic: got true, but XLA has no deterministic gradient of max pooling (layer "
                    f"{layer.name}); set it or train.jit_compile to false."
                )

    def _state(self) -> dict[str, tf.Variable]:
        state = {"num_boxes_dropped": self.num_boxes_dropped, **self.state_of_loss_scale}
        weights = {id(variable) for variable in self.detector.network.weights}
        seeds = [variable for variable in self.detector.network.variables if id(variable) not in weights]  # of dropout
        return {**state, **{f"seed_{i}": seed.value for i, seed in enumerate(seeds)}}

    # --- cross-replica context ----------------------------------------------------------------------------------------

    def _steps(self, iterator: Any, count: tf.Tensor) -> _Progress:
        def goes_on(progress: _Progress) -> tf.Tensor:
            is_wanted = progress.is_open
            if not self._on_several_workers:
                is_wanted &= (progress.num_started == 0) | ~self.stop.read_value()
            return (progress.num_started < count) & is_wanted

        def step(progress: _Progress) -> tuple[_Progress]:
            batch, waited = self._next(iterator, progress)
            return (self._step(batch, progress._replace(input_seconds=progress.input_seconds + waited)),)

        zero, none, yes = tf.constant(0), tf.zeros([len(self.numbers.names)]), tf.constant(True)
        start = _Progress(zero, yes, zero, zero, none, none, tf.constant(0.0, tf.float64), yes, ~yes)
        (end,) = tf.while_loop(goes_on, step, (start,))
        if self._on_several_workers:
            return end
        with tf.control_dependencies([end.num_started]):
            return end._replace(is_stopped=self.stop.read_value())

    def _next(self, iterator: Any, progress: _Progress) -> tuple[Any, tf.Tensor]:
        """Return the next batch on the device and the seconds spent waiting for it."""
        if not self._has_clock:
            return next(iterator), tf.constant(0.0, tf.float64)
        with tf.control_dependencies([progress.num_started]):  # and so the operations of the step before have run
            asked = tf.timestamp()
        with tf.control_dependencies([asked]):
            batch = next(iterator)
        arrived = [tensor for value in batch.values() for tensor in self.strategy.experimental_local_results(value)]
        with tf.control_dependencies(arrived):
            waited = tf.timestamp() - asked
        with tf.control_dependencies([waited]):  # otherwise, with few threads, the clock is read after the step
            return tf.nest.map_structure(tf.identity, batch, expand_composites=True), waited

    def _step(self, batch: Any, progress: _Progress) -> _Progress:
        local_results = self.strategy.experimental_local_results
        tensors = {name: value for name, value in batch.items() if local_results(value)[0].dtype != tf.string}
        wants_stop = tf.cast(self.stop.read_value(), tf.float32)
        results = {
            name: local_results(value)[0]  # all replicas have the same
            for name, value in self.strategy.run(
                self._of_replica, args=(tensors, wants_stop, progress.is_finite)
            ).items()
        }
        is_good, is_finite = results["is_good"], results["is_finite"]
        self.optimizer.iterations.assign_add(tf.cast(is_finite, self.optimizer.iterations.dtype))
        self.num_boxes_dropped.assign_add(tf.where(is_finite, tf.cast(results["num_dropped"], tf.int64), 0))
        if self.loss_scale is not None:
            self.loss_scale.update(is_good, progress.is_finite)
        return _Progress(
            num_started=progress.num_started + 1,
            is_open=progress.is_finite & ~progress.is_stopped,
            num_steps=progress.num_steps + tf.cast(progress.is_finite, tf.int32),
            num_applied=progress.num_applied + tf.cast(is_good, tf.int32),
            sums=progress.sums + tf.where(is_good, results["numbers"], 0.0),
            last=tf.where(progress.is_finite, results["numbers"], progress.last),
            input_seconds=progress.input_seconds,
            is_finite=is_finite,
            is_stopped=results["wants_stop"] > 0,
        )

    def _pass_over(self, iterator: Any) -> None:
        next(iterator)
        self.optimizer.iterations.assign_add(1)

    # --- replica context ----------------------------------------------------------------------------------------------

    def _replica_step(self, batch: _Batch, wants_stop: tf.Tensor, was_finite: tf.Tensor) -> dict[str, tf.Tensor]:
        """Run one step on this replica; `numbers` and flags are those of the whole batch.

        Replicas synchronize only at the top level of this function, so that the update can be a branch.

        Args:
            was_finite: if False, nothing is changed.
        """
        num_replicas, variables = self.strategy.num_replicas_in_sync, self.trained.variables
        whole = num_replicas == 1 and self.num_parts == 1
        if not whole:
            batch = {**batch, **self.detector.targets(batch)}
        num_matches = None if whole else sum_over_replicas(self.detector.count_matches(batch))
        seeds = self._seeds_of_replica()
        result = self._whole_backward(batch, num_matches, seeds)
        floats = {i for i, value in result.state.items() if value.dtype.is_floating}  # the others are seeds
        num_dropped = tf.cast(tf.reduce_sum(batch["num_dropped"]), tf.float32)
        losses, counts, gradients, statistics = sum_over_replicas(
            [
                result.losses,
                tf.stack([num_dropped, wants_stop]),
                result.gradients,
                [result.state[i] / num_replicas for i in sorted(floats)],
            ]
        )
        state = {**result.state, **dict(zip(sorted(floats), statistics, strict=True))}
        stored = self.detector.network.non_trainable_variables
        state |= {i: tf.stack([stored[i].value[0], state[i][1]]) for i in seeds}
        if self.loss_scale is not None:
            gradients = [gradient / self.loss_scale.factor for gradient in gradients]
        gradients = scale_bias_gradients(gradients, variables, self.config.bias_grad_multiplier)
        norms = gradient_norms(gradients)
        rate = self.optimizer.learning_rate * self.rate_factor
        # Include the statistics: very large activations can make them infinite while loss and gradients are finite.
        statistics_sums = [tf.reduce_sum(tf.cast(statistic, tf.float32)) for statistic in statistics]
        forward = tf.add_n([tf.reduce_sum(losses), rate, *statistics_sums])
        is_good = was_finite & tf.math.is_finite(forward) & tf.math.is_finite(tf.norm(norms))
        is_finite = is_good
        if self.loss_scale is not None:  # the forward pass does not depend on the loss scale
            is_finite |= was_finite & tf.math.is_finite(forward) & self.loss_scale.can_shrink()
        self._apply_if(is_good, lambda: clip_gradients(self.config.gradient_clipping, gradients, norms), rate, state)
        scale = None if self.loss_scale is None else self.loss_scale.factor.read_value()
        return {
            "numbers": self.numbers.of_step(losses, rate, scale, norms),
            "is_good": is_good,
            "is_finite": is_finite,
            "num_dropped": counts[0],
            "wants_stop": counts[1],
        }

    def _seeds_of_replica(self) -> dict[int, tf.Tensor]:
        """Return the seeds of dropout by index, different on each replica, so that masks are independent.

        A seed is [key, number of draws]. The stored key is that of the first replica; with one, nothing is returned.
        """
        if self.strategy.num_replicas_in_sync == 1:
            return {}
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        values = {i: variable.value for i, variable in enumerate(self.detector.network.non_trainable_variables)}
        seeds = {i: value for i, value in values.items() if not value.dtype.is_floating}
        return {i: tf.stack([value[0] + tf.cast(replica, value.dtype), value[1]]) for i, value in seeds.items()}

    def _apply_if(
        self, is_good: tf.Tensor, clipped: Callable[[], list[tf.Tensor]], rate: tf.Tensor, state: dict[int, tf.Tensor]
    ) -> None:
        """Update the variables if `is_good`.

        On accelerators, an update that is not good is undone instead: the host would have to wait for the result to
        choose a branch. On a CPU, copies of all variables would take longer than the branch.
        """

        def apply() -> tf.Tensor:
            self._apply(clipped(), rate, state)
            return tf.constant(True)

        if not self._on_accelerator:
            tf.cond(is_good, apply, lambda: tf.constant(False))
            return
        averages = [] if self.averaged_weights is None else self.averaged_weights.averages
        counted = {id(self.optimizer.iterations)}
        slots = [slot.value for slot in self.optimizer.variables if id(slot) not in counted]
        changed = [variable.value for variable in self.trained.variables] + slots + averages
        changed += [self.detector.network.non_trainable_variables[index].value for index in state]
        handles = [(variable.handle, variable.dtype) for variable in changed]
        before = [tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype) for handle, dtype in handles]
        apply()
        for (handle, dtype), value in zip(handles, before, strict=True):
            after = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
            tf.raw_ops.AssignVariableOp(resource=handle, value=tf.where(is_good, after, value))

    def _apply(self, gradients: list[tf.Tensor], rate: tf.Tensor, state: dict[int, tf.Tensor]) -> None:
        apply_update(self.optimizer, gradients, self.trained.variables, rate)
        non_trainable = self.detector.network.non_trainable_variables
        for index, value in state.items():
            non_trainable[index].assign(value)
        if self.averaged_weights is not None:
            self.averaged_weights.update(self.optimizer.iterations + 1)

    def _backward(self, batch: _Batch, num_matches: tf.Tensor | None, state: dict[int, tf.Tensor]) -> _Backward:
        """Return losses and gradients of a part; new statistics are returned, not assigned.

        Args:
            state: values of non-trainable variables to use instead of the stored ones, by index.
        """
        network = self.detector.network
        batch = {**batch, IMAGE: self.detector.preprocessing.normalize_padded(batch[IMAGE], batch[TRUE_HW])}
        values = [variable.value for variable in self.trained.variables]
        non_trainable = network.non_trainable_variables
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(values)  # only these: branches that lead to frozen variables cost nothing
            with keras.StatelessScope([(non_trainable[i], value) for i, value in state.items()]) as scope:
                outputs = self.detector.forward(batch, training=True)
                parts = self.detector.losses(outputs, batch, num_matches)
            penalties = network.losses if self.config.add_regularization_loss else []
            share = 1 / (self.num_parts * self.strategy.num_replicas_in_sync)
            parts["regularization_loss"] = tf.add_n([tf.zeros([]), *penalties]) * share
            losses = tf.stack([parts[name] for name in self.loss_names])
            loss = tf.reduce_sum(losses)
            if self.loss_scale is not None:
                loss *= self.loss_scale.factor
        gradients = tape.gradient(loss, values, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        current = {i: scope.get_current_value(variable) for i, variable in enumerate(non_trainable)}
        return _Backward(losses, gradients, {i: value for i, value in current.items() if value is not None})

    def _accumulated(self, batch: _Batch, num_matches: tf.Tensor | None, seeds: dict[int, tf.Tensor]) -> _Backward:
        """Sum over the parts of the batch in sequence; batch norm's statistics pass from part to part."""
        parts = {
            name: tf.reshape(value, [self.num_parts, value.shape[0] // self.num_parts, *value.shape[1:]])
            for name, value in batch.items()
        }

        def add(i: tf.Tensor, sums: _Backward) -> tuple[tf.Tensor, _Backward]:
            part = {name: value[i] for name, value in parts.items()}
            of_part = self._backward(part, num_matches, sums.state)
            # The shape is known. The operation keeps Grappler from merging this sum with sums in the backward pass: its
            # scheduling would put a temporary variable into both loops, which fails with "AlreadyExistsError".
            gradients = [
                one + tf.ensure_shape(other, one.shape)
                for one, other in zip(sums.gradients, of_part.gradients, strict=True)
            ]
            return i + 1, _Backward(sums.losses + of_part.losses, gradients, of_part.state)

        none = [tf.zeros(variable.shape) for variable in self.trained.variables]
        fixed = self.detector.network.non_trainable_variables
        state = dict(enumerate(tf.convert_to_tensor(variable) for variable in fixed))
        start = (tf.constant(0), _Backward(tf.zeros([len(self.loss_names)]), none, {**state, **seeds}))
        _, sums = tf.while_loop(lambda i, _: i < self.num_parts, add, start, parallel_iterations=1)
        return sums
