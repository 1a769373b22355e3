"""The wheel: what it holds, and that it works outside the repository."""

import shutil
import tomllib

import pytest
import wheels
from paths import REPOSITORY


def test_every_package_is_in_the_wheel():
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))
    files = [*REPOSITORY.glob("anytime_jax/**/*.py"), *REPOSITORY.glob("configs/**/*.py")]
    folders = {file.parent.relative_to(REPOSITORY).parts for file in files}
    names = (".".join(x if x[0] == "anytime_jax" else ("anytime_jax", *x)) for x in folders)
    assert settings["tool"]["setuptools"]["packages"] == sorted(names)


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    pytest.importorskip("setuptools", "77")
    root = tmp_path_factory.mktemp("wheel")
    return wheels.Environment(root, wheels.build(wheels.TRAINER, root))


@pytest.fixture
def run(environment, tmp_path):
    """Runs `python -m` in an empty folder with the installed package; returns its output."""
    return lambda *argv, status=0: environment.run(*argv, folder=tmp_path, status=status)


@pytest.mark.slow
def test_installed_package_has_its_files_and_no_laboratory(run, environment):
    assert str(environment.site / "anytime_jax" / "configs") in run(
        "anytime_jax", "train", "--list"
    )
    assert (environment.site / "anytime_jax" / "py.typed").is_file()
    assert not (environment.site / "configs").exists()
    assert "theory" not in run("anytime_jax", "--help")
    assert "pip install anytime_lab" in run("anytime_jax", "theory", status=2)


@pytest.mark.slow
def test_installed_package_trains_by_name_and_from_a_copied_file(run, environment, tmp_path):
    settings = (
        "--config.run_dir=run", "--config.data.path=builtin", "--config.data.builtin_megabytes=0.5",
        "--config.eval.tokens=4096", "--config.chinchilla_tokens=40960",
    )  # fmt: skip
    first = run("anytime_jax.main", "--config=quickstart", *settings, "--config.stop=1x")
    assert first.count("--config.stop=") == 1
    configs = environment.site / "anytime_jax" / "configs"
    shutil.copy(configs / "quickstart.py", tmp_path / "mine.py")
    assert "from     10 steps" in run(
        "anytime_jax.main", "--config=mine.py", *settings, "--config.stop=2x"
    )
