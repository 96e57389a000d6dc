"""The engine process, so that a crash or a hang in native code never reaches the terminal."""
