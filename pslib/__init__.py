"""A sparse parameter server for CTR prediction and recommendation."""
