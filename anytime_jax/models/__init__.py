"""The decoder and its parts: attention, matrix products, loss, FLOPs, sampling."""
