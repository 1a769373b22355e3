"""Kinds that a configuration names: short names, classes, and what is imported for them."""

import dataclasses
import sys

import pytest

from anytime_jax import optimizers, schedules
from anytime_jax.config import schema
from anytime_jax.config.kinds import EVERY_PACKAGE, NOBODY, Kinds
from anytime_jax.config.schema import MODELS, OPTIMIZERS, SCHEDULES
from anytime_jax.errors import InputError
from anytime_lab.optimizers import GPA
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


def test_short_names_are_those_of_the_classes():
    assert OPTIMIZERS.classes == {
        "adamw": optimizers.AdamW,
        "muon": optimizers.Muon,
        "pace": optimizers.Pace,
        "schedule_free_adamw": optimizers.ScheduleFreeAdamW,
    }
    assert set(SCHEDULES.classes) == {
        *("constant", "power", "inverse_sqrt", "cosine", "linear", "wsd"),
    }
    assert set(MODELS.classes) == {"olmo", "olmo2", "llama", "qwen"}


@pytest.mark.parametrize("kinds", [OPTIMIZERS, SCHEDULES, MODELS])
def test_name_leads_back_to_the_class(kinds):
    for name, cls in kinds.classes.items():
        assert kinds.name_of(cls) == name
        assert kinds.find(name, NOBODY) is cls
        assert kinds.find(f"{cls.__module__}:{cls.__name__}", NOBODY) is cls  # our own package


def test_class_has_the_shortest_name_that_leads_to_it():
    assert OPTIMIZERS.name_of(GPA) == "anytime_lab.optimizers:GPA"
    assert OPTIMIZERS.find("anytime_lab.optimizers:GPA", NOBODY) is GPA


def test_class_of_ones_own_is_a_kind(stranger):
    config = schema.build(settings(stranger, momentum=0.25))
    assert config.optimizer.momentum == 0.25
    assert config.to_dict()["optimizer"] == {"kind": stranger, "momentum": 0.25}
    assert schema.build(config.to_dict()) == config
    assert config.identity("")["optimizer.momentum"] == 0.25
    assert config.facts()["optimizer.momentum"].branch == "named"
    with pytest.raises(InputError, match=r"^config\.optimizer\.momentun is not a setting"):
        schema.build(settings(stranger, momentun=0.25))
    with pytest.raises(InputError, match=r"^config\.optimizer\.momentum = 'x' is not allowed"):
        schema.build(settings(stranger, momentum="x"))


def test_class_is_imported_only_if_its_package_is_trusted(stranger, tmp_path):
    for trust in (NOBODY, ("other", "strange"), ["stranger.part"]):
        with pytest.raises(InputError, match=r"config\.optimizer\.kind .*--trust=stranger"):
            schema.build(settings(stranger), trust)
    assert "stranger" not in sys.modules
    assert not (tmp_path / "imported").exists()
    for trust in (("stranger",), EVERY_PACKAGE):
        assert schema.build(settings(stranger), trust).optimizer.momentum == 0.5
    assert (tmp_path / "imported").exists()


@pytest.mark.parametrize(
    "name",
    [
        *("no.such.module:Class", "stranger:Missing", "stranger:NoKind", "math:pi", "stranger"),
        *("stranger:", ":Mine", "stranger:Mine.momentum", "os:system('x')", 3, None, ["adamw"]),
        "anytime_jax.schedules:Constant",  # of another part
    ],
)
def test_what_is_no_kind_is_named_in_one_line(stranger, name):
    with pytest.raises(InputError, match=r"^config\.optimizer\.kind") as caught:
        schema.build(settings(name))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("momentum: dict = None", "has the field momentum, whose type is no setting's"),
        ("momentum: 'Nowhere' = 1", "the types of .* cannot be resolved"),
        ("kind: str = 'adamw'", "has a field kind"),
        ("momentum: tuple = dataclasses.field(default_factory=lambda: 1 / 0)", "ZeroDivisionError"),
    ],
)
def test_field_that_is_no_setting_is_named(stranger, tmp_path, field, message):
    text = MODULE.replace("momentum: float = 0.5", field)
    (tmp_path / "stranger.py").write_text(text)
    with pytest.raises(InputError, match=rf"^config\.optimizer: .*{message}"):
        schema.build(settings(stranger))


def test_default_factory_gives_the_default(stranger, tmp_path):
    field = "momentum: tuple = dataclasses.field(default_factory=lambda: (1, 2))"
    (tmp_path / "stranger.py").write_text(MODULE.replace("momentum: float = 0.5", field))
    assert schema.build(settings(stranger)).to_dict()["optimizer"]["momentum"] == (1, 2)


RATES = """
import dataclasses
from anytime_jax.schedules import Schedule

@dataclasses.dataclass(frozen=True)
class Rate(Schedule):
    peak: float = 1.0

    def formula(self, t, xp):
        return BODY
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("BODY", "-self.peak + 0 * t", "learning rates that are no numbers of at least 0"),
        ("BODY", "self.peak / (t - t)", "learning rates that are no numbers of at least 0"),
        ("BODY", "None", "learning rates that are no numbers of at least 0"),
        ("BODY", "t if t < 5 else 5", r"stranger\.py, line 10, in formula: ValueError: The truth"),
        ("(frozen=True)", "", "a frozen dataclass"),
        ("BODY", "exit(0)", r"stranger\.py, line 10, in formula: SystemExit"),
        ("BODY", "[][1]", r"stranger\.py, line 10, in formula: IndexError"),
        ("(Schedule)", "", "extends anytime_jax.schedules.Schedule, with a method formula"),
        ("def formula", "def other", "extends anytime_jax.schedules.Schedule, with a method form"),
        ("peak: float", "rate: float", "the class Rate has no field peak"),
        ("    peak", "    horizon: int = 0\n    peak", "this schedule has a horizon"),
    ],
)
def test_schedule_without_a_rate_is_named(stranger, tmp_path, old, new, message):
    text = RATES.replace(old, new).replace("BODY", "self.peak + 0 * t")
    (tmp_path / "stranger.py").write_text(text)
    source = quickstart.get_config().to_dict()
    with pytest.raises(InputError, match=rf"^config.*{message}"):
        schema.build({**source, "schedule": {"kind": "stranger:Rate"}})


def test_points_of_a_schedule_are_read_by_the_clock():
    source = quickstart.get_config().to_dict()
    source["schedule"] = {"kind": "wsd", "peak": 1.0, "horizon": "2x", "warmup": 40}
    config = schema.build({**source, "stop": "horizon"})
    assert config.learning_rate == schedules.WSD(1.0, horizon=800, warmup=40)
    assert config.to_dict()["schedule"]["horizon"] == "2x"  # as it was written


def test_module_needs_no_list_of_its_kinds():
    @dataclasses.dataclass(frozen=True)
    class Added(schedules.Constant):
        kind = "added"

    kinds = Kinds(SCHEDULES.module, SCHEDULES.method)
    try:
        schedules.Added = Added
        assert kinds.find("added", NOBODY) is Added
    finally:
        del schedules.Added


def test_packages_of_a_configuration_are_those_of_its_classes_alone(stranger):
    assert schema.build(settings("muon")).packages() == ()  # not a module that is called "muon"
    assert schema.build(settings(stranger)).packages() == ("stranger",)
