"""DetectionExampleGen: labelled images in, TFRecord shards and a quarantine out."""
