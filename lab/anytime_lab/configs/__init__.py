"""Configurations of the laboratory's commands, by name: files, as those in `configs/`."""
