"""The command of an oracle: it writes what its functions return into the folder of fixtures."""

import argparse
import pathlib
from collections.abc import Callable, Mapping

import numpy as np
import torch


def main(functions: Mapping[str, Callable[[], Mapping[str, np.ndarray]]]) -> None:
    """Writes the arrays of each function as a file; its name is the one of the function here."""
    parser = argparse.ArgumentParser(description=f"Write {' and '.join(functions)}.")
    default = pathlib.Path(__file__).parents[1] / "fixtures"
    parser.add_argument("--output", type=pathlib.Path, default=default, help="the folder")
    output = parser.parse_args().output
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    output.mkdir(parents=True, exist_ok=True)
    for name, function in functions.items():
        np.savez_compressed(output / name, **function())
