"""Compilation of a run's update for absent accelerators, and the cost of the program.

Begin with `update_report.py`. `topologies.py` and `gpu_targets.py` describe the devices, `hlo.py`
reads the compiled program, `roofline.py` gives the least time of each of its kernels;
`program_search.py` tries layouts.
"""
