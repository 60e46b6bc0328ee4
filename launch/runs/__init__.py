"""Ways to run: train from a job file, run a script, demo, verify."""
