"""One training step in parts, and what happens around it: references, evaluation, checkpoints, the critic."""
