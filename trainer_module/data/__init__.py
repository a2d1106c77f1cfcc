"""The training data: TFRecord shards, parsing, preprocessing, augmentation, batches."""
