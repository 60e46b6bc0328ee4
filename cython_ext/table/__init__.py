"""Kernels of tables: index, arena, optimizers, policies."""
