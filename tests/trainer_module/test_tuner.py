from types import SimpleNamespace

import keras_tuner
import pytest

from detloom.schemas.contracts.label_map import LABEL_MAP_FILE, LabelMap, write_label_map
from detloom.schemas.errors import InputError
from detloom.schemas.reading.typed_dict import to_canonical_json
from detloom.schemas.run_file.tuner import SearchRange, TunerSettings
from detloom.trainer_module import tuner, tuner_fn
from detloom.trainer_module.tuner import HyperparameterSearch

SPACE = (SearchRange(key="train.optimizer.learning_rate.learning_rate_base", min=1e-4, max=1e-1, log=True),)


@pytest.fixture
def trials(monkeypatch):
    """Fake trials that record their rate; rates near 0.01 score best. `kill_at` ends the search in that trial."""
    made = SimpleNamespace(rates=[], kill_at=None, fail=False)

    def train_trial(config, out_dir):
        out_dir.mkdir(parents=True, exist_ok=True)
        (out_dir / "checkpoints").mkdir(exist_ok=True)
        if len(made.rates) == made.kill_at:
            made.kill_at = None
            raise KeyboardInterrupt
        rate = config.train.optimizer.learning_rate.learning_rate_base
        made.rates.append(rate)
        if made.fail:
            raise InputError("the loss became nan")

    class Best:
        def __init__(self, best_dir, metric, keep):
            rate = made.rates[-1]
            self.best = SimpleNamespace(value=-abs(rate - 0.01) * (-1 if metric == "loss" else 1), step=2)

    monkeypatch.setattr(tuner, "BestCheckpoints", Best)
    made.train_trial = train_trial
    return made


def search_in(folder, config, trials, **settings):
    settings = {"max_trials": 4, "steps_per_trial": 3, "space": SPACE, **settings}
    search = HyperparameterSearch(TunerSettings(**settings), config, folder, trials.train_trial)
    search.search()
    return search


@pytest.mark.parametrize(("algorithm", "objective"), [("random", "AP"), ("bayesian", "AP"), ("random", "loss")])
def test_search_finds_the_best_trial(tmp_path, tiny_config, trials, algorithm, objective):
    search = search_in(tmp_path, tiny_config, trials, algorithm=algorithm, objective=objective)
    assert len(trials.rates) == 4
    assert all(1e-4 <= rate <= 1e-1 for rate in trials.rates)
    best = min(trials.rates, key=lambda rate: abs(rate - 0.01))
    assert search.get_best_hyperparameters()[0].get_config()["values"] == {SPACE[0].key: best}


@pytest.mark.reliability("kill", "train")
@pytest.mark.reliability("torn file", "train")
@pytest.mark.parametrize("algorithm", ["random", "bayesian"])
def test_killed_search_trains_no_trial_twice(tmp_path, tiny_config, trials, algorithm):
    undisturbed = search_in(tmp_path / "a", tiny_config, trials, algorithm=algorithm)
    rates, trials.rates, trials.kill_at = trials.rates, [], 2
    with pytest.raises(KeyboardInterrupt):
        search_in(tmp_path / "b", tiny_config, trials, algorithm=algorithm)
    for file in (tmp_path / "b" / "keras_tuner").glob("*.json"):
        file.write_text("{")  # as if killed while KerasTuner wrote it
    search = search_in(tmp_path / "b", tiny_config, trials, algorithm=algorithm)
    assert trials.rates == rates
    assert search.get_best_hyperparameters()[0].values == undisturbed.get_best_hyperparameters()[0].values
    assert list((tmp_path / "b").glob("*/checkpoints")) == []  # weights of finished trials are deleted


def test_untrainable_values_fail_only_their_trial(tmp_path, tiny_config, trials):
    train_trial = trials.train_trial

    def fail_first(config, out_dir):
        trials.fail = not trials.rates
        train_trial(config, out_dir)

    trials.train_trial = fail_first
    search = search_in(tmp_path, tiny_config, trials)
    assert len(trials.rates) == 4
    assert search.get_best_hyperparameters()[0].values[SPACE[0].key] in trials.rates[1:]


def test_search_without_a_successful_trial_names_the_cause(tmp_path, tiny_config, trials):
    trials.fail = True
    with pytest.raises(InputError, match="the loss became nan"):
        search_in(tmp_path / "many", tiny_config, trials)
    with pytest.raises(InputError, match="the loss became nan"):
        search_in(tmp_path / "one", tiny_config, trials, max_trials=1)


def test_internal_error_ends_the_search(tmp_path, tiny_config, trials):
    def broken(config, out_dir):
        raise KeyError("x")

    trials.train_trial = broken
    with pytest.raises(keras_tuner.errors.FatalError) as caught:
        search_in(tmp_path, tiny_config, trials)
    assert isinstance(caught.value.__cause__, KeyError)


def test_trials_are_shortened_and_use_the_objective(tmp_path, tiny_config, trials):
    seen = []

    def note(config, out_dir):
        seen.append(config)
        trials.rates.append(0.01)
        out_dir.mkdir(parents=True)

    trials.train_trial = note
    search_in(tmp_path, tiny_config, trials, max_trials=1, objective="AP50")
    (config,) = seen
    assert (config.train.num_steps, config.eval.evaluate_every) == (3, 2)  # half of 6 and of 4
    assert (config.eval.best_metric, config.eval.keep_best) == ("AP50", 1)
    assert config.train.optimizer.learning_rate.total_steps == 3


def test_search_uses_a_folder_that_tfx_does_not_delete(tmp_path, tiny_config, make_example, write_records):
    for split in ("train", "eval"):
        write_records(tmp_path / "examples" / f"Split-{split}" / "data", [make_example()])
    write_label_map(tmp_path / "examples" / LABEL_MAP_FILE, LabelMap.from_names(["red", "green"]))
    settings = TunerSettings(max_trials=2, steps_per_trial=2, space=SPACE)
    result = tuner_fn(
        SimpleNamespace(
            custom_config={"trainer_config": to_canonical_json(tiny_config), "tuner": to_canonical_json(settings)},
            train_files=[str(tmp_path / "examples" / "Split-train" / "*")],
            eval_files=[str(tmp_path / "examples" / "Split-eval" / "*")],
            working_dir=str(tmp_path / "Tuner" / ".system" / "executor_execution" / "7" / ".temp"),
            hyperparameters=None,
            base_model=None,
        )
    )
    assert result.fit_kwargs == {}
    assert result.tuner.oracle.max_trials == 2
    (folder,) = (tmp_path / "Tuner" / "unfinished").iterdir()
    assert result.tuner.project_dir == str(folder / "keras_tuner")
