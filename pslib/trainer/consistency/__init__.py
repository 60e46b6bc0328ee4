"""Consistency modes of training: async, sync, ssp, geo."""
