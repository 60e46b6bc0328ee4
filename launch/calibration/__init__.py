"""Measuring what things cost on this machine: short runs of the real code, for `pslib.planner`."""
