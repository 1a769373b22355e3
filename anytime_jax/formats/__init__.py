"""Models and tokenizers in the formats of other libraries, written and read."""
