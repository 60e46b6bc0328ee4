"""Kernels over keys, rows and examples; imports nothing of ours."""
