"""From a name to a loaded pair: found, fetched, planned, loaded."""
