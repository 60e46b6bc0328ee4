"""Measurement of costs on this machine, for `pslib.planner`: short runs of the real code."""
