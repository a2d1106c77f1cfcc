"""Rules for the fields of training, evaluation and data reading.

They were checked against the Object Detection API's `model_lib_v2.py`, `inputs.py`, `optimizer_builder.py`,
`dataset_builder.py`, `decoder_builder.py`, `eval_util.py` and `config_util.py`.
"""

from collections.abc import Mapping
from typing import Any

from detloom.schemas.model import config as tree
from detloom.schemas.model import optimizers as optimizers
from detloom.schemas.odapi.rules import Depends, Ignored, Mapped, Refused, Rule, Structure, at, each, unless
from detloom.schemas.odapi.text_format import Message
from detloom.schemas.reading.typed_dict import TYPE_KEY

_TF1 = Ignored(reason="TF1 only: the TF2 loop does not read it")
_QUEUES = Ignored(reason="for TF1's queues; tf.data tunes reading itself")
_DRAWING = Ignored(reason="only affects images in summaries")
_REPORT = Ignored(reason="adds metrics to the report, does not change others")
_BY_MODEL = "are read if the model learns them, and only then"
_OTHER_MODELS = "for other kinds of models, which are not supported"


# --- checkpoints ------------------------------------------------------------------------------------------------------


def _checkpoint(message: Message) -> Rule:
    if message.scalar("fine_tune_checkpoint") and message.scalar("fine_tune_checkpoint_version") == "V1":
        return Refused(
            reason="fine_tune_checkpoint_version is V1, which is also its default: TF1 checkpoints cannot be read; for "
            "a TF2 checkpoint, write fine_tune_checkpoint_version: V2"
        )
    return at("fine_tune_checkpoint")


def _checkpoint_type(message: Message) -> Rule:
    text = message.scalar("fine_tune_checkpoint_type")
    if text == "fine_tune":
        return _REMOVED_TYPE
    if text:
        return at("fine_tune_checkpoint_type")
    return Ignored(reason="empty: from_detection_checkpoint is used")


def _from_detection_checkpoint(message: Message) -> Rule:
    if message.scalar("fine_tune_checkpoint_type"):
        return Ignored(reason="fine_tune_checkpoint_type is set")
    return _FROM_DETECTION


_REMOVED_TYPE = Mapped(
    key="fine_tune_checkpoint_type",
    read=lambda _: "detection",
    note="the Object Detection API has removed fine_tune; detection does the same",
)
_FROM_DETECTION = Mapped(
    key="fine_tune_checkpoint_type",
    read=lambda is_detector: "detection" if is_detector else "classification",
    write=lambda plain: None,
)

# --- masks ------------------------------------------------------------------------------------------------------------


def _instance_masks(message: Message) -> Rule:
    if message.scalar("load_instance_masks") and message.scalar("mask_type") == "NUMERICAL_MASKS":
        return Refused(
            reason="mask_type is NUMERICAL_MASKS, which is also its default: masks are read as PNG, as detloom ingest "
            "--masks writes them; write mask_type: PNG_MASKS"
        )
    return _MASKS


_MASKS = Ignored(reason=f"masks {_BY_MODEL}")

# --- trained variables ------------------------------------------------------------------------------------------------

_TF1_ONLY = "TF1 only in the Object Detection API: its TF2 loop does not read it"
_BIAS_GRADIENTS = Mapped(
    key="bias_grad_multiplier",
    read=lambda factor: factor or 1.0,
    write=lambda plain: 0.0 if plain["bias_grad_multiplier"] == 1 else plain["bias_grad_multiplier"],
    note=f"0 means no factor; {_TF1_ONLY}",
)

# --- optimizer --------------------------------------------------------------------------------------------------------


def _clipping_norm(plain: Mapping[str, Any]) -> float | None:
    clipping = plain["gradient_clipping"]
    if clipping is None:
        return 0.0
    return clipping["norm"] if clipping[TYPE_KEY] == "ClipByGlobalNorm" else None


def _average_decay(message: Message) -> Rule:
    if message.scalar("use_moving_average"):
        return at("moving_average.decay")
    return Ignored(reason="is used only with use_moving_average")


_MOMENTUM = {"learning_rate": at("learning_rate"), "momentum_optimizer_value": at("momentum")}

TRAIN: dict[str, Structure] = {
    "TrainEvalPipelineConfig": Structure(
        makes=tree.TrainEvalConfig,
        single={"eval_input_reader": "evaluation reads only the first data set"},
        fields={
            "train_config": at("train"),
            "train_input_reader": at("train_input"),
            "eval_config": at("eval"),
            "eval_input_reader": at("eval_input", "a second reader is refused"),
            "graph_rewriter": Refused(reason="quantization-aware training is not supported"),
        },
    ),
    "TrainConfig": Structure(
        makes=tree.Train,
        fields={
            "use_bfloat16": Mapped(
                key="precision",
                read=lambda is_used: "bfloat16_on_tpu" if is_used else "float32",
                write=lambda plain: plain["precision"] == "bfloat16_on_tpu",
                note="true: bfloat16_on_tpu",
            ),
            "data_augmentation_options": at("augmentations"),
            "optimizer": at(""),
            "gradient_clipping_by_norm": Mapped(
                key="gradient_clipping",
                read=lambda norm: {TYPE_KEY: "ClipByGlobalNorm", "norm": norm} if norm else None,
                write=_clipping_norm,
                note="0 turns clipping off",
            ),
            "fine_tune_checkpoint": Depends(
                usual=at("fine_tune_checkpoint"),
                when="with fine_tune_checkpoint_version V1, its default: refused",
                choose=_checkpoint,
            ),
            "fine_tune_checkpoint_type": Depends(
                usual=at("fine_tune_checkpoint_type"), when="empty: ignored", choose=_checkpoint_type
            ),
            "from_detection_checkpoint": Depends(
                usual=_FROM_DETECTION,
                when="with fine_tune_checkpoint_type: ignored",
                choose=_from_detection_checkpoint,
            ),
            "fine_tune_checkpoint_version": Ignored(
                reason="describes fine_tune_checkpoint; only V2 can be read", constant="V2"
            ),
            "load_all_detection_checkpoint_vars": unless(False, "the TF2 loop rejects it too"),
            "run_fine_tune_checkpoint_dummy_computation": Ignored(
                reason="variables are always created before restoring"
            ),
            **each(_TF1, "sync_replicas", "startup_delay_steps", "replicas_to_aggregate"),
            "bias_grad_multiplier": _BIAS_GRADIENTS,
            **each(_QUEUES, "batch_queue_capacity", "num_batch_queue_threads", "prefetch_queue_capacity"),
            "freeze_variables": at("freeze_variables", _TF1_ONLY),
            "update_trainable_variables": at("update_trainable_variables", _TF1_ONLY),
            "max_number_of_boxes": Ignored(reason="replaced by train_input_reader.max_number_of_boxes"),
            "unpad_groundtruth_tensors": Ignored(reason="padding is never used as ground truth"),
            "merge_multiple_label_boxes": unless(False, "boxes with several classes are not supported"),
            "use_multiclass_scores": unless(False, "training on scores of another model is not supported"),
            **each(_DRAWING, "retain_original_images", "summarize_gradients"),
        },
    ),
    "Optimizer": Structure(
        choice="optimizer",
        fields={
            **each(at("optimizer"), "rms_prop_optimizer", "momentum_optimizer", "adam_optimizer"),
            "use_moving_average": Mapped(
                key="moving_average",
                read=lambda is_used: {} if is_used else None,
                write=lambda plain: plain["moving_average"] is not None,
                implied=True,
            ),
            "moving_average_decay": Depends(
                usual=at("moving_average.decay"), when="without use_moving_average: ignored", choose=_average_decay
            ),
        },
    ),
    "RMSPropOptimizer": Structure(fields=_MOMENTUM),
    "MomentumOptimizer": Structure(fields=_MOMENTUM),
    "LearningRate": Structure(choice="learning_rate"),
    "ManualStepLearningRate.LearningRateSchedule": Structure(makes=optimizers.LearningRateStep),
    # --- evaluation ---------------------------------------------------------------------------------------------------
    "EvalConfig": Structure(
        makes=tree.Eval,
        single={"parameterized_metric": "a model has keypoints of one class"},
        fields={
            **each(_TF1, "num_examples", "eval_interval_secs", "max_evals", "save_graph", "eval_master"),
            **each(_TF1, "ignore_groundtruth", "use_dummy_loss_in_eval"),
            "eval_instance_masks": Ignored(reason="masks are evaluated if the model has them"),
            **each(_DRAWING, "num_visualizations", "visualization_export_dir", "min_score_threshold"),
            **each(_DRAWING, "max_num_boxes_to_visualize", "skip_scores", "skip_labels"),
            **each(_DRAWING, "visualize_groundtruth_boxes", "groundtruth_box_visualization_color"),
            **each(_DRAWING, "keep_image_id_for_visualization_export", "keypoint_edge"),
            "retain_original_images": Ignored(reason="box sizes are always measured in the original image"),
            "retain_original_image_additional_channels": _DRAWING,
            **each(_REPORT, "include_metrics_per_category", "all_metrics_per_category"),
            **each(
                Ignored(reason="is used only with other metrics, which are refused"),
                "export_path",
                "recall_lower_bound",
                "recall_upper_bound",
            ),
            "image_classes_field_map_empty_to_ones": Ignored(reason="is used only for CenterNet"),
            "force_no_resize": unless(False, "images are always resized"),
            "skip_predictions_for_unlabeled_class": unless(
                False, "detections of unlabelled classes are always counted"
            ),
            "parameterized_metric": Mapped(
                key="", write=lambda plain: plain if plain["keypoint_sigmas"] else None, note="mapped to its own fields"
            ),
            "super_categories": _REPORT,
        },
    ),
    "ParameterizedMetric": Structure(choice="parameterized_metric", otherwise={}),
    "CocoKeypointMetrics": Structure(
        fields={
            "class_label": Ignored(reason="keypoints are measured for the class that has them in the model"),
            "keypoint_label_to_sigmas": at("keypoint_sigmas"),
        }
    ),
    "CocoKeypointMetrics.KeypointLabelToSigmasEntry": Structure(
        makes=tree.KeypointSigma, fields={"key": at("name"), "value": at("sigma")}
    ),
    # --- data ---------------------------------------------------------------------------------------------------------
    "InputReader": Structure(
        fields={
            "tf_record_input_reader": at(""),
            "external_input_reader": Ignored(
                reason="names data outside of TFRecord files; the data of the run is read"
            ),
            **each(_QUEUES, "queue_capacity", "min_after_dequeue", "prefetch_size", "num_parallel_map_calls"),
            "read_block_length": Mapped(key="read_block_length", implied=32, note="32 if omitted"),
            "filenames_shuffle_buffer_size": Ignored(reason="with shuffle, all file names are shuffled in each epoch"),
            **each(Ignored(reason="tf.data tunes it itself"), "num_parallel_batches", "num_prefetch_batches"),
            "name": Ignored(reason="names a folder of summaries"),
            "include_source_id": Ignored(reason="source ids are always read"),
            "drop_remainder": Ignored(reason="training uses complete batches only, evaluation reads every image"),
            "use_display_name": Ignored(reason="the Object Detection API does not read it"),
            "mask_type": Ignored(reason="masks are read as PNG; with load_instance_masks, others are refused"),
            "frame_index": Ignored(reason="is used only with sequences, which are refused"),
            "keypoint_type_weight": Refused(reason="weights of single keypoints are not supported"),
            "use_keypoint_label_map": unless(False, "keypoints are read in the order in which they are stored"),
            "load_keypoint_depth_features": unless(False, "the depth of keypoints is not supported"),
            "load_instance_masks": Depends(
                usual=_MASKS, when="true without mask_type: PNG_MASKS: refused", choose=_instance_masks
            ),
            "num_keypoints": Ignored(reason=f"keypoints {_BY_MODEL}; their number is that of the model"),
            "num_additional_channels": unless(0, "images have three channels"),
            "load_multiclass_scores": unless(False, "training on scores of another model is not supported"),
            **each(
                unless(False, _OTHER_MODELS),
                "load_context_features",
                "load_context_image_ids",
                "load_dense_pose",
                "load_track_id",
            ),
            "expand_labels_hierarchy": unless(False, "class hierarchies are not supported"),
            "input_type": unless("TF_EXAMPLE", "sequences are not supported"),
            "sample_from_datasets_weights": Refused(reason="weighted data sets are not supported"),
        },
    ),
    "TFRecordInputReader": Structure(fields={"input_path": at("input_path")}),
}
