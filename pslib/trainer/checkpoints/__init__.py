"""Checkpoints of a trainer: save, load, schedule, and those taken while training."""
