"""Commands run in the process of the tests."""

from anytime_jax.commands import command_line


def run_command(module, argv):
    """Runs the command of a module with arguments; returns its exit status."""
    name = module.__name__.rpartition(".")[2]
    return command_line.run(module, f"python -m anytime_jax {name}", [str(word) for word in argv])
