"""Former place of `pslib.data.inspect.describe`, for scripts that import it from here."""

from pslib.data.inspect.describe import describe

__all__ = ["describe"]
