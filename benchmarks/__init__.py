"""Commands that measure: each prints a table and, with --output, writes everything it timed."""
