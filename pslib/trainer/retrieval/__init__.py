"""Retrieval models: item vectors, nearest items, ranking metrics."""
