"""Commands run in the process of the tests."""

from anytime_jax import plugins
from anytime_jax.commands import argument_parser, exit_status


def run_command(module, argv):
    """Runs the command of a module with arguments; returns its exit status."""
    names = {command.module: name for name, command in plugins.commands().items()}
    name = names.get(module.__name__, module.__name__.rpartition(".")[2])
    program, words = f"anytime {name}", [str(word) for word in argv]

    def work():
        return module.run(argument_parser.parse(module, program, words))

    return exit_status.run(work, "--debug" in words)
