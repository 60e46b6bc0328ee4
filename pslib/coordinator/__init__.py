"""The process that knows who is there: it drives the pure sessions of `pslib.wire`."""
