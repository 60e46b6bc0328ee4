"""Command line, job file, supervisor and places to run."""
