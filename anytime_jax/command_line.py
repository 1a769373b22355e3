"""What the doors share in how they answer a command line."""

import argparse
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """An argument parser that answers a usage error in one line, like any other bad input."""

    def error(self, message: str) -> NoReturn:
        """Prints the line and leaves with exit status 2."""
        self.exit(2, f"error: {message}; --help lists the options\n")
