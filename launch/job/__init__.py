"""The job file: sections, validation, and what is built from it."""
