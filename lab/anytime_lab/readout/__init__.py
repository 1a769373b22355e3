"""Search for the best read-out of a trained run: which average, or which weighted sum of averages.

Begin with `readout_search`; `readout_command` prints and draws what it finds.
"""
