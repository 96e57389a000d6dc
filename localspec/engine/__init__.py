"""The engine as a process of its own, so that a crash or a hang in native code never reaches the terminal."""
