"""Process control of a run: spawn, watch, restart, stop, resume."""
