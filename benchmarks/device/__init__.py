"""Scripts for a GPU that is there for minutes: one question each, under nine minutes."""
