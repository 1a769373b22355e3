"""Run directories: checkpoints, their verification and retention, and records."""
