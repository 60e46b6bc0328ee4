"""Entry point of every process that a launcher starts."""
