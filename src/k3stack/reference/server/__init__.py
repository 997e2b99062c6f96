"""The OpenAI API over the reference engine."""
