"""What detections say beyond the twelve COCO numbers. Numpy alone: arrays in, frozen values out."""
