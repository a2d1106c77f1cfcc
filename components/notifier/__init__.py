"""Messages about runs: to an address that takes JSON, and by mail."""
