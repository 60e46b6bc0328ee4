"""Processes started by a launcher: entry point, watchdog, training of a job file."""
