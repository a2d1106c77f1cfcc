"""From the levels to box offsets and class logits."""
