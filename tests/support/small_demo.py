"""Settings with which the demo trains in seconds, in the form of `--set`: a network whose detections are of no use."""

SMALL = (
    "model.image_resizer={height: 64, width: 64}",
    "model.feature_extractor.depth_multiplier=0.1",
    "model.feature_extractor.neck.additional_layer_depth=16",
    "model.box_predictor.depth=16",
    "model.box_predictor.num_layers_before_predictor=1",
    "train.batch_size=8",
    "train.num_steps=4",
    "train.optimizer={type: AdamWOptimizer, learning_rate: {type: ConstantLearningRate, learning_rate: 0.001}}",
    "train.augmentations=[]",
    "eval.evaluate_every=1000",
    "gates={floors: [], no_floor_reason: The training has a few steps., baseline: {min_ap_change: -1.0}}",
)
