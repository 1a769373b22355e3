"""Comparison of f25 with the other weights of a trained run, and with averages of other f.

Begin with `readout_search`; `readout_command` decides, and prints and draws what it finds.
"""
