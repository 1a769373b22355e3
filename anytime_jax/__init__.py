"""Pretraining language models without choosing a horizon.

Importing this package loads nothing else: `from anytime_jax import schedules, averaging` needs only
jax, optax and numpy.
"""

__version__ = "0.1.0"
