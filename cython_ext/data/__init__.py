"""Kernels of the reader: hashing of Arrow columns, batches, shuffling."""
