"""Scoring of held-out data: metrics, predictions, early stopping."""
