"""Text to token windows: sources, vocabularies, preparation, and `batch(n)`."""
