from tfx.dsl.input_resolution.strategies.latest_blessed_model_strategy import LatestBlessedModelStrategy

from detloom.components.warm_start.resolver import NODE_ID, build_warm_start_resolver


def test_the_latest_blessed_model_is_found_by_tfxs_own_strategy():
    """The KFP v2 compiler knows it by name; what it finds, tests/pipelines/test_create_pipeline.py shows."""
    node = build_warm_start_resolver()
    assert node.id == NODE_ID
    assert node._strategy_class is LatestBlessedModelStrategy
    assert set(node.outputs) == {"model", "model_blessing"}
