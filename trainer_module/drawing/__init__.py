"""Draw boxes, masks and keypoints on images."""
