"""Kinds that a configuration names: short names, classes, and what is imported for them."""

import sys

import pytest

from anytime_jax import plugins, schedules
from anytime_jax.config import run_config
from anytime_jax.config.kinds import EVERY_PACKAGE, NOBODY
from anytime_jax.config.model import MODELS
from anytime_jax.config.run_settings import OPTIMIZERS, SCHEDULES, all_settings
from anytime_jax.errors import InputError
from configs import quickstart

MODULE = '''"""A stranger's kinds."""
import dataclasses
import optax
open("imported", "a").close()

@dataclasses.dataclass(frozen=True)
class Mine:
    """Plain descent.

    Attributes:
      momentum: decay of the momentum.
    """

    momentum: float = 0.5

    def transform(self, run):
        return optax.sgd(run.learning_rate, self.momentum)

class NoKind:
    pass
'''


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """A module in the working directory, which leaves a file when it is imported."""
    (tmp_path / "stranger.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    yield "stranger:Mine"
    sys.modules.pop("stranger", None)


def settings(kind, **values):
    source = quickstart.get_config().to_dict()
    return {**source, "optimizer": {"kind": kind, **values}}


@pytest.mark.parametrize("kinds", [OPTIMIZERS, SCHEDULES, MODELS])
def test_name_leads_back_to_the_class(kinds):
    for name, cls in kinds.classes.items():
        assert kinds.name_of(cls) == name
        assert kinds.find(name, NOBODY) is cls
        assert kinds.find(f"{cls.__module__}:{cls.__name__}", NOBODY) is cls  # our own package


def test_class_of_an_installed_plugin_is_trusted_and_may_have_a_short_name(stranger, monkeypatch):
    ours = plugins.installed()
    mine = plugins.Plugin(kinds={"optimizer": {"mine": stranger, "adamw": stranger}})
    monkeypatch.setattr(plugins, "installed", lambda: {**ours, "stranger": mine})
    for name in (stranger, "mine"):
        config = run_config.build(settings(name), trust=NOBODY)
        assert config.to_dict()["optimizer"] == {"kind": "mine", "momentum": 0.5}
    assert "optimizer.momentum" in all_settings()
    assert OPTIMIZERS.name_of(OPTIMIZERS.find("adamw", NOBODY)) == "adamw"  # not another's


def test_class_of_ones_own_is_a_kind(stranger):
    config = run_config.build(settings(stranger, momentum=0.25), trust=EVERY_PACKAGE)
    assert config.optimizer.momentum == 0.25
    assert config.to_dict()["optimizer"] == {"kind": stranger, "momentum": 0.25}
    assert run_config.build(config.to_dict(), trust=EVERY_PACKAGE) == config
    assert config.identity("")["optimizer.momentum"] == 0.25
    assert config.facts()["optimizer.momentum"].branch == "named"
    with pytest.raises(InputError, match=r"^config\.optimizer\.momentun\b"):
        run_config.build(settings(stranger, momentun=0.25), trust=EVERY_PACKAGE)


def test_class_is_imported_only_if_its_package_is_trusted(stranger, tmp_path):
    for trust in (NOBODY, ("other", "strange"), ["stranger.part"]):
        with pytest.raises(InputError, match=r"config\.optimizer\.kind .*--trust=stranger"):
            run_config.build(settings(stranger), trust=trust)
    assert "stranger" not in sys.modules
    assert not (tmp_path / "imported").exists()
    for trust in (("stranger",), EVERY_PACKAGE):
        assert run_config.build(settings(stranger), trust=trust).optimizer.momentum == 0.5
    assert (tmp_path / "imported").exists()


@pytest.mark.parametrize(
    "name",
    [
        *("no.such.module:Class", "stranger:Missing", "stranger:NoKind", "math:pi", "stranger"),
        *("stranger:", "os:system('x')", 3),
        "anytime_jax.schedules:Constant",  # of another part
    ],
)
def test_what_is_no_kind_is_named(stranger, name):
    with pytest.raises(InputError, match=r"^config\.optimizer\.kind"):
        run_config.build(settings(name), trust=EVERY_PACKAGE)


# Classes whose fields are no settings, and schedules that give no rate: a text of the class, and
# what replaces it.
BAD_CLASSES = {
    "optimizer": [
        ("momentum: float = 0.5", "momentum: dict = None"),
        ("momentum: float = 0.5", "momentum: 'Nowhere' = 1"),
        ("momentum: float = 0.5", "kind: str = 'adamw'"),
        ("0.5", "dataclasses.field(default_factory=lambda: 1 / 0)"),
    ],
    "schedule": [
        ("self.peak", "-self.peak"),
        ("+ 0 * t", "/ (t - t)"),
        ("self.peak + 0 * t", "None"),
        ("self.peak", "exit(0)"),
        ("(frozen=True)", ""),
        ("(Schedule)", ""),
        ("peak: float", "rate: float"),
    ],
}
RATE = """
import dataclasses
from anytime_jax.schedules import Schedule

@dataclasses.dataclass(frozen=True)
class Mine(Schedule):
    peak: float = 1.0

    def formula(self, t, xp):
        return self.peak + 0 * t
"""


@pytest.mark.parametrize(
    ("group", "old", "new"), [(group, *x) for group, xs in BAD_CLASSES.items() for x in xs]
)
def test_class_that_is_no_kind_is_named(stranger, tmp_path, group, old, new):
    text = RATE if group == "schedule" else MODULE
    assert old in text
    (tmp_path / "stranger.py").write_text(text.replace(old, new))
    with pytest.raises(InputError, match=rf"^config\.{group}"):
        run_config.build({**settings("adamw"), group: {"kind": stranger}}, trust=EVERY_PACKAGE)


def test_schedule_of_ones_own_has_a_rate_and_perhaps_a_horizon(stranger, tmp_path):
    file = tmp_path / "stranger.py"
    file.write_text(RATE)
    source = {**settings("adamw"), "schedule": {"kind": stranger, "peak": 0.5}}
    assert run_config.build(source, trust=EVERY_PACKAGE).rate_at(7) == 0.5
    file.write_text(RATE.replace("    peak:", "    horizon: int = 9\n    peak:"))
    sys.modules.pop("stranger")
    with pytest.raises(InputError, match=r"^config\.stop"):
        run_config.build(source, trust=EVERY_PACKAGE)


def test_points_of_a_schedule_are_read_by_the_clock():
    source = quickstart.get_config().to_dict()
    source["schedule"] = {"kind": "wsd", "peak": 1.0, "horizon": "2x", "warmup": 40}
    config = run_config.build({**source, "stop": "horizon"}, trust=EVERY_PACKAGE)
    assert config.learning_rate == schedules.WSD(1.0, horizon=800, warmup=40)
    assert config.to_dict()["schedule"]["horizon"] == "2x"  # as it was written


def test_packages_of_a_configuration_are_those_of_its_classes_alone(stranger):
    muon, own = (run_config.build(settings(x), trust=EVERY_PACKAGE) for x in ("muon", stranger))
    assert muon.packages() == ()  # not a module that is called "muon"
    assert own.packages() == ("stranger",)
