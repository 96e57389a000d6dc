"""The engine process, which keeps a crash or a hang of native code away from the terminal."""
