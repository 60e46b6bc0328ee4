"""What operators see of a run: its state, pages, counters and reports."""
