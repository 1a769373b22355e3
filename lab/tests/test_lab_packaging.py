"""The wheels of both distributions in an empty environment: every command of the laboratory."""

import pytest
import wheels

from anytime_lab import plugin


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    pytest.importorskip("setuptools", "77")
    root = tmp_path_factory.mktemp("wheel")
    built = [wheels.build(x, root) for x in (wheels.TRAINER, wheels.LABORATORY)]
    return wheels.Environment(root, *built)


@pytest.fixture
def run(environment, tmp_path):
    """Runs `python -m anytime_jax` in an empty folder; returns its output."""

    def start(*argv, status=0):
        return environment.run("anytime_jax", *argv, folder=tmp_path, status=status)

    return start


@pytest.mark.slow
def test_every_command_is_there(run):
    listed = run("--help")
    for name, command in plugin.PLUGIN.commands.items():
        assert f"  {name} " in listed
        assert command.summary in " ".join(run(name, "--help").split())


@pytest.mark.slow
def test_files_and_studies_are_installed(run, environment):
    for name in ("py.typed", "study/published.csv", "package_text/packages.csv"):
        assert (environment.site / "anytime_lab" / name).is_file()
    assert "101 runs" in run("sweep", "--study=laptop", "--list")
    steps = ("--config.steps=10", "--config.select_at=5", "--config.dimension=50")
    run("theory", "--config=theory_figure", *steps)
    run_of_study = ("train", "--config=laptop:constant-peak=0.01", "--config.batch_size=0")
    assert "config.batch_size" in run(*run_of_study, status=2)
    compiled = ("compile", "--config=150m_inv_sqrt", "--topology=none")
    assert "--topology" in run(*compiled, status=2)
