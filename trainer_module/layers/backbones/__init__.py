"""Classification networks without classifier. Each builder returns feature maps by level; level l has stride 2**l."""
