"""The trainer: optimizer, guard, update step, loop, evaluation, branches."""
