"""Studies on disk: study files, plans, archives of records."""

import dataclasses
import json
import tarfile

import pytest
import synthetic_study

from anytime_jax.config import run_config
from anytime_jax.config.kinds import NOBODY
from anytime_jax.errors import InputError
from anytime_lab.studies import laptop
from anytime_lab.study import study_files
from anytime_lab.study.plan import Study, runs
from anytime_lab.study.study_files import ARCHIVE, PLAN, load_file, open_study, pack, write_plan
from configs import quickstart


def test_plan_is_restored(tmp_path):
    study = dataclasses.replace(laptop.get_study(), root=str(tmp_path))
    write_plan(study)
    with open_study(tmp_path) as restored:
        assert [(x.name, x.trunk) for x in restored.runs] == [(x.name, x.trunk) for x in study.runs]
    for ours, theirs in zip(study.runs, restored.runs, strict=True):
        assert theirs.run_dir == tmp_path / ours.name
        settings = {**theirs.settings, "run_dir": ours.settings["run_dir"]}
        assert run_config.build(settings, trust=NOBODY) == ours.build()


def test_kind_that_a_plan_names_is_imported_if_its_package_is_trusted(tmp_path, monkeypatch):
    (tmp_path / "my_rates.py").write_text(MY_RATES)
    monkeypatch.chdir(tmp_path)
    config = quickstart.get_config()
    config.schedule = {"kind": "my_rates:Mine", "peak": 1e-2}
    write_plan(Study("mine", "study", runs("mine", config, [{}], "study")))
    for trust, is_trusted in (((), False), (["my_rates"], True)):
        with open_study("study", trust=trust) as study:
            (run,) = study.runs
            if is_trusted:
                assert run.build().schedule.name == "my_rates:Mine"
            else:
                with pytest.raises(InputError, match="--trust=my_rates"):
                    run.build()


MY_RATES = """
import dataclasses
from anytime_jax.schedules import Constant

@dataclasses.dataclass(frozen=True)
class Mine(Constant):
    pass
"""


def test_archive_is_reproducible_and_holds_no_path_of_this_machine(tmp_path):
    study = synthetic_study.write_study(tmp_path / "study", leave_out=["constant-peak=0.03"])
    (tmp_path / "packed").mkdir()
    archive = pack(study, tmp_path / "packed" / ARCHIVE)
    with tarfile.open(archive) as tar:
        names = tar.getnames()
        contents = {name: tar.extractfile(name).read().decode() for name in names}
    assert len(names) == len(set(names)) == 1 + 2 * (len(study.runs) - 1)
    assert not any(str(tmp_path) in content for content in contents.values())
    branch = json.loads(contents["wsd-peak=0.01-horizon=4x/run.json"])
    assert branch["branch"]["from_run"] == "constant-peak=0.01"
    with open_study(tmp_path / "packed") as packed:
        assert packed.root == str(tmp_path / "packed")
        again = pack(packed, tmp_path / "again.tar.xz")
    assert again.read_bytes() == archive.read_bytes()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"study\.py"),
        ("x = 1", r"get_study\(\)"),
        ("def get_study():\n    return 1 / 0", "line 2, .*: ZeroDivisionError"),
        ("def get_study(", "SyntaxError"),
        (
            "from anytime_lab.study.plan import *\ndef get_study():\n"
            "    return Study('s', 'r', [StudyRun('b', {})])",
            r"get_config\(name\)",
        ),
    ],
)
def test_invalid_study_file_is_rejected(content, message, tmp_path):
    file = tmp_path / "study.py"
    if content is not None:
        file.write_text(content)
    with pytest.raises(InputError, match=message):
        load_file(file)


def test_study_is_found_by_name_even_beside_a_directory_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "laptop").mkdir()
    assert load_file("laptop").name == "laptop"
    with open_study("laptop") as study:
        assert study.name == "laptop"
    with pytest.raises(InputError, match="--study=labtop"):
        load_file("labtop")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is not a study"),
        ("[]", PLAN),
        ('{"format_version": 9}', "format version 9"),
        (f'{{"format_version": {study_files.FORMAT_VERSION}}}', PLAN),
    ],
)
def test_invalid_study_directory_is_rejected(content, message, tmp_path):
    if content is not None:
        (tmp_path / PLAN).write_text(content)
    with pytest.raises(InputError, match=message), open_study(tmp_path):
        pass


def test_damaged_archive_is_rejected(tmp_path):
    study = synthetic_study.write_study(tmp_path / "study")
    archive = pack(study, tmp_path / ARCHIVE)
    archive.write_bytes(archive.read_bytes()[:2000])
    with pytest.raises(InputError, match=ARCHIVE), open_study(archive):
        pass
