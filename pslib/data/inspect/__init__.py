"""Checks and descriptions of Parquet data."""
