"""Converters from text files to Parquet."""
