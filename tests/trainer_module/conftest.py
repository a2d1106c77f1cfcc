"""A detector small enough to train in seconds."""

import pytest

from detloom.schemas.config import (
    AdamW,
    BatchNorm,
    CosineRate,
    FpnLite,
    HorizontalFlip,
    ImageSize,
    MobileNetV2,
    MultiscaleAnchors,
    Nms,
    SharedHead,
    Ssd,
    TrainerConfig,
    Training,
)


@pytest.fixture(scope="session")
def tiny_config() -> TrainerConfig:
    return TrainerConfig(
        detector=Ssd(
            image_size=ImageSize(height=64, width=64),
            batch_norm=BatchNorm(momentum=0.9),
            backbone=MobileNetV2(width_multiplier=0.1),
            neck=FpnLite(max_level=5, num_channels=16),
            head=SharedHead(num_layers=1, num_channels=16),
            anchors=MultiscaleAnchors(aspect_ratios=(1.0,), scales_per_octave=1),
            nms=Nms(score_threshold=0.01, max_detections=10),
        ),
        training=Training(
            batch_size=2,
            num_steps=6,
            steps_per_call=2,
            evaluate_every=4,
            max_boxes=4,
            ema_decay=0.5,
            optimizer=AdamW(rate=CosineRate(learning_rate=2e-3, warmup_steps=2)),
            augmentations=(HorizontalFlip(),),
        ),
    )
