"""Synthetic data with a known best possible AUC."""
