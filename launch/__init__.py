"""The command line and the places to run."""
