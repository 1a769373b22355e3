"""Studies: lists of named runs, and what to read in them."""
