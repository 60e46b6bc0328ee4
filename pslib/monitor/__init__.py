"""Monitoring of runs: their state, samples over time, and who shows them."""
