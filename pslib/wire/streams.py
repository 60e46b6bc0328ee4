"""Streams of pushes that belong to clients, not to leases."""

from __future__ import annotations

__all__ = ["CLIENT_STREAMS"]


CLIENT_STREAMS = 1 << 63
"""First stream number of clients: leases use smaller ones."""
