"""Names of environment variables that processes of a cluster are told by, and people tell them with."""

from __future__ import annotations

__all__ = ["CLUSTER_ID_VARIABLE", "COORDINATOR_VARIABLE", "DEBUG_VARIABLE", "KEYS_VARIABLE"]

COORDINATOR_VARIABLE = "PSLIB_COORDINATOR"
"""The address of the cluster's coordinator."""
CLUSTER_ID_VARIABLE = "PSLIB_CLUSTER_ID"
"""Which cluster it must be."""
KEYS_VARIABLE = "PSLIB_KEYS"
"""Names the file of a key, never a key: environments are inherited, listed and logged."""
DEBUG_VARIABLE = "PSLIB_DEBUG"
"""With 1 everything has its traceback."""
