"""Forecast of the losses of a run: later, decayed, or of its averages, from its losses so far."""
