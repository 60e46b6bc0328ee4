"""Coordinator process: membership, leases, rebalance and checkpoints, over the sessions of `pslib.wire`."""
