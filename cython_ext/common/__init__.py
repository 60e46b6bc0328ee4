"""Hashing, argument checks, vector instructions and cores, shared by all kernels."""
