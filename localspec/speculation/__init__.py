"""The algorithm: draft, verify, accept, roll back, emit. Numpy only, no C pointer."""
