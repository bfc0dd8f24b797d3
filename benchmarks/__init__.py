"""Scripts that show how fast or how small something is, as ratios measured in one run. None is a test."""
