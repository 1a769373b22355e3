"""Any weights of a saved run: by name, post-hoc averages, the best read-out."""
