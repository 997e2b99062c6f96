"""K3 in PyTorch, exact and readable, with a small serving engine and the OpenAI API over it."""
