"""Files of the repository that repeat what another one says, and so could contradict it."""

import re
import tomllib

import pytest
import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from paths import REPOSITORY

from anytime_jax import __version__

PROJECTS = [REPOSITORY / x for x in ("pyproject.toml", "lab/pyproject.toml")]
OWN = {"anytime-jax", "anytime-lab"}
NOT_INSTALLED = {"export", "tensorboard", "wandb"}  # extras that the Makefile installs nowhere


def requirements(file):
    project = tomllib.loads(file.read_text("utf-8"))["project"]
    extras = project.get("optional-dependencies", {})
    groups = [y for x, y in extras.items() if x not in NOT_INSTALLED]
    return [Requirement(x) for group in (project.get("dependencies", []), *groups) for x in group]


@pytest.mark.parametrize("python", ["3.11", "3.12"])
def test_constraints_have_a_version_of_every_requirement_that_it_allows(python):
    environment = {**default_environment(), "python_version": python}
    environment["python_full_version"] = f"{python}.0"
    lines = (REPOSITORY / "constraints.txt").read_text("utf-8").splitlines()
    pins = [Requirement(x) for x in lines if not x.lstrip().startswith("#")]
    pins = [x for x in pins if x.marker is None or x.marker.evaluate(environment)]
    versions = {canonicalize_name(x.name): str(x.specifier).removeprefix("==") for x in pins}
    assert len(versions) == len(pins)
    needed = [x for file in PROJECTS if file.exists() for x in requirements(file)]
    for requirement in needed:
        if (name := canonicalize_name(requirement.name)) not in OWN:
            fits = name in versions and requirement.specifier.contains(versions[name])
            assert fits, f"{requirement}: run `make constraints`"


def make_targets():
    return set(re.findall(r"^([a-z0-9-]+):", (REPOSITORY / "Makefile").read_text("utf-8"), re.M))


@pytest.mark.parametrize("name", ["ci", "docs", "nightly"])
def test_steps_of_workflows_are_targets_of_the_makefile(name):
    workflow = yaml.safe_load((REPOSITORY / f".github/workflows/{name}.yml").read_text("utf-8"))
    used = set()
    for job in workflow["jobs"].values():
        commands = [step["run"] for step in job["steps"] if "run" in step]
        assert commands
        for command in commands:
            make, target, *variables = command.replace("${{ matrix.target }}", "MATRIX").split()
            assert make == "make"
            assert all("=" in x for x in variables)
            used |= set(job["strategy"]["matrix"]["target"]) if target == "MATRIX" else {target}
    assert used <= make_targets()


def test_hooks_before_a_commit_are_the_parts_of_make_lint():
    hooks = yaml.safe_load((REPOSITORY / ".pre-commit-config.yaml").read_text("utf-8"))
    entries = [hook["entry"] for repository in hooks["repos"] for hook in repository["hooks"]]
    lint = re.search(r"^lint: (.*?) *##", (REPOSITORY / "Makefile").read_text("utf-8"), re.M)
    assert entries == [f"make --silent {x}" for x in lint[1].split()]


def test_citation_has_the_version():
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text("utf-8"))
    assert str(citation["version"]) == __version__
