"""Looks at a run: its state and samples, the page that shows them, its metrics and its report."""
