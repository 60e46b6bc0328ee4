"""Kubernetes as a place to run: manifests of a job, and thin calls of kubectl."""
