"""Wheels of the distributions, in an environment that has what they need and nothing else."""

import pathlib
import shutil
import subprocess
import sys
import sysconfig

from paths import REPOSITORY

TRAINER = ("pyproject.toml", "README.md", "LICENSE", "anytime_jax", "configs")
LABORATORY = ("lab/pyproject.toml", "lab/README.md", "lab/anytime_lab")
_PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
_OFFLINE = ("--no-deps", "--no-build-isolation", "--no-index")


def build(sources, root):
    """Builds the wheel of sources, whose first is a pyproject.toml; returns its path."""
    place = root / "source"  # not in the repository, where a build leaves files
    for name in sources:
        path, copy = REPOSITORY / name, place / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            shutil.copytree(path, copy, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, copy)
    project = (place / sources[0]).parent
    folder = root / f"wheel_{project.name}"
    subprocess.run([*_PIP, "wheel", *_OFFLINE, f"--wheel-dir={folder}", project], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


class Environment:
    """A new virtual environment with wheels, and links to all packages of this one but ours."""

    def __init__(self, root, *wheels):
        self.site, libraries = root / "site", root / "libraries"
        install = (*_PIP, "install", *_OFFLINE, f"--target={self.site}")
        subprocess.run([*install, *wheels], check=True)
        libraries.mkdir()
        for item in pathlib.Path(sysconfig.get_path("purelib")).iterdir():
            if "anytime" not in item.name:
                (libraries / item.name).symlink_to(item)
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", root / "environment"], check=True
        )
        self._python = root / "environment" / "bin" / "python"
        self._path = f"{self.site}:{libraries}"

    def run(self, *argv, folder, status=0):
        """Runs `python -m` in a folder; returns its output, errors too."""
        done = subprocess.run(
            [self._python, "-m", *argv],
            cwd=folder, capture_output=True, text=True, check=False,
            env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": self._path},
        )  # fmt: skip
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr
