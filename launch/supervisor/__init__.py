"""Process control of a run: start, watch, restart, stop, resume."""
