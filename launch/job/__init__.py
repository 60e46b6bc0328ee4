"""The job file: sections, validation, and the objects built from it."""
