"""Classification networks without their classifier. Each builder gives feature maps by level, of stride 2**level."""
