"""Data: Parquet in, batches of keys out; converters, a checker and a generator of samples."""
