"""Serving: models of checkpoints answer requests over HTTP, without a cluster."""
