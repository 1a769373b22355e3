"""The command `python -m anytime_jax.lab.package_text`."""

from anytime_jax.lab import module_command
from anytime_jax.lab.package_text import package_text_command

if __name__ == "__main__":
    module_command.run_and_exit(package_text_command, "package_text")
