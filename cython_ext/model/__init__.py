"""Kernels of models: matrix products, pooling, fused layers, the row cache."""
