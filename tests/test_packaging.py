"""The wheel: what it holds, and that it works outside the repository."""

import shutil
import subprocess
import sys
import tomllib

import pytest
from paths import REPOSITORY

SOURCES = ("pyproject.toml", "README.md", "LICENSE", "anytime_jax", "configs")


def test_every_package_is_in_the_wheel():
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))
    files = [*REPOSITORY.glob("anytime_jax/**/*.py"), *REPOSITORY.glob("configs/**/*.py")]
    folders = {file.parent.relative_to(REPOSITORY).parts for file in files}
    names = (".".join(x if x[0] == "anytime_jax" else ("anytime_jax", *x)) for x in folders)
    assert settings["tool"]["setuptools"]["packages"] == sorted(names)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder into which a wheel of the package is installed."""
    pytest.importorskip("setuptools", "77")
    root = tmp_path_factory.mktemp("wheel")
    for name in SOURCES:  # not in the repository, where a build leaves files
        path, copy = REPOSITORY / name, root / "source" / name
        copy.parent.mkdir(exist_ok=True)
        if path.is_dir():
            shutil.copytree(path, copy, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, copy)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    offline = ("--no-deps", "--no-build-isolation", "--no-index")
    subprocess.run([*pip, "wheel", *offline, f"--wheel-dir={root}", root / "source"], check=True)
    (wheel,) = root.glob("*.whl")
    subprocess.run([*pip, "install", *offline, f"--target={root / 'site'}", wheel], check=True)
    return root / "site"


@pytest.fixture
def run(site, tmp_path, monkeypatch):
    """Runs `python -m` in an empty folder with the installed package; returns its output."""
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.delenv("XLA_FLAGS")  # one device

    def start(*argv, status=0):
        done = subprocess.run(
            [sys.executable, "-m", *argv],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr

    return start


@pytest.mark.slow
def test_installed_package_has_its_files(run, site):
    assert str(site / "anytime_jax" / "configs") in run("anytime_jax", "train", "--list")
    assert (site / "anytime_jax" / "py.typed").is_file()
    for name in ("study/published.csv", "package_text/packages.csv"):
        assert (site / "anytime_jax" / "lab" / name).is_file()
    assert not (site / "configs").exists()


@pytest.mark.slow
def test_installed_package_trains_by_name_and_from_a_copied_file(run, site, tmp_path):
    settings = (
        "--config.run_dir=run", "--config.data.path=builtin", "--config.data.builtin_megabytes=0.5",
        "--config.eval.tokens=8192", "--config.chinchilla_tokens=40960",
    )  # fmt: skip
    first = run("anytime_jax.main", "--config=quickstart", *settings, "--config.stop=1x")
    assert first.count("--config.stop=") == 1
    shutil.copy(site / "anytime_jax" / "configs" / "quickstart.py", tmp_path / "mine.py")
    assert "from     10 steps" in run(
        "anytime_jax.main", "--config=mine.py", *settings, "--config.stop=2x"
    )


@pytest.mark.slow
def test_installed_package_finds_studies_and_other_configurations_by_name(run):
    assert "58 runs" in run("anytime_jax", "sweep", "--study=laptop", "--list")
    run("anytime_jax", "theory", "--config=theory_figure", "--config.steps=10",
        "--config.select_at=5", "--config.dimension=50")  # fmt: skip
    wrong = "--config.batch_size=0"
    for name, message in (
        ("laptop:constant-peak=0.01", "config.batch_size = 0"),
        ("continued:none", "none is not a directory"),
    ):
        assert message in run("anytime_jax.main", f"--config={name}", wrong, status=2)
    compiled = ("compile", "--config=150m_inv_sqrt", "--topology=none")
    assert "--topology" in run("anytime_jax", *compiled, status=2)
