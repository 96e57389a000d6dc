"""The engine as a process of its own: a crash, an out-of-memory kill or a hang in native code never reaches the terminal."""
