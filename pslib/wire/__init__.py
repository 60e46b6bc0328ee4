"""Messages, codec and the pure sessions of both ends: no socket, no clock, no thread."""
