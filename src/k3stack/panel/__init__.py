"""The web page: choices with their reasons, memory, and the exact command, from the same code as the command line."""
