"""Limits of a training's numbers, for trainers and for job files: whoever refuses one refuses it in both.

They stand apart because a job file is read for a look too, and what trains takes most of a second to import.
"""

from __future__ import annotations

__all__ = [
    "BATCH_ROWS_MAX",
    "CACHE_AGE_MAX",
    "CACHE_ROWS_MAX",
    "COMPUTE_THREADS_MAX",
    "DAMPING_MAX",
    "GEO_EVERY_MAX",
    "GEO_ROWS_MAX",
    "LEASE_ROWS_MAX",
    "MAINTAIN_EVERY_MAX",
    "PATIENCE_MAX",
    "SEED_MAX",
    "STALENESS_MAX",
    "WARMUP_BATCHES_MAX",
]

BATCH_ROWS_MAX = 1 << 24
"""Far above any published batch; the rows that one touches would not fit a message any more."""
STALENESS_MAX = 1024
"""Each batch that a trainer runs ahead holds its rows in memory, and far fewer hide any network."""
WARMUP_BATCHES_MAX = 1 << 31
"""More batches than anybody trains: the bound on staleness then never reaches its end."""
LEASE_ROWS_MAX = 1 << 32
"""A lease may be all of the data: then one trainer has it."""
SEED_MAX = (1 << 63) - 1
"""A seed is a number of 64 bits with a sign in files and messages."""
COMPUTE_THREADS_MAX = 256
"""More than one process can feed: a batch is cut into far fewer parts."""
CACHE_AGE_MAX = 1 << 16
"""Far beyond any staleness that a model would learn with."""
CACHE_ROWS_MAX = 1 << 28
"""Of 17 floats they would take 86 GB."""
MAINTAIN_EVERY_MAX = 1 << 31
"""More batches than anybody trains: what is to never happen is 0."""
GEO_EVERY_MAX = 1 << 16
"""All rows that so many batches touch are held until they are sent."""
GEO_ROWS_MAX = 1 << 30
"""Of a copy in one trainer; far above its memory."""
DAMPING_MAX = 1000.0
"""A step of staleness 1 would already count a thousandth."""
PATIENCE_MAX = 1 << 31
"""More epochs than anybody trains: what is to never end a fit is 0."""
