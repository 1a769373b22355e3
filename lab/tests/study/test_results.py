"""Results: loss curves, other decays, and studies whose runs cannot be compared."""

import dataclasses
import json

import pytest
import small_run
import synthetic_study
from run_files import META
from synthetic_study import MULTIPLES, expected_loss, make_study, with_copy, write_study

from anytime_jax.checkpoints.metric_records import RecordWriter
from anytime_jax.errors import InputError
from anytime_lab.study.results import Results, compared_settings


def write_few(root, study=None, leave_out=()):
    """Writes a study of two runs, and of the copy of one if it has that."""
    study, names = study or make_study(), ("constant-peak=0.01", "constant-peak=0.03")
    kept = [run for run in study.runs if run.name in names or run.name.startswith("copy")]
    return write_study(root, leave_out, dataclasses.replace(study, runs=kept))


def test_branches_of_a_trunk_are_one_curve(results):
    curve = next(x for x in results.comparable_curves("wsd") if x.settings["peak"] == 0.01)
    expected = {m: expected_loss(f"wsd-peak=0.01-horizon={m:g}x", m, "last") for m in MULTIPLES}
    assert curve.losses == expected


def test_branch_on_other_data_is_a_curve_of_its_own(tmp_path):
    study = with_copy("wsd-peak=0.01-horizon=4x", {"branch.data": "elsewhere"})
    results = Results(write_study(tmp_path, study=study))
    data = [x.settings["data"] for x in results.all_curves if "data" in x.settings]
    assert data == ["elsewhere"]
    assert len(results.comparable_curves("wsd")) == 3


def test_runs_are_compared_at_equal_tokens_where_the_batch_grows(tmp_path):
    change = {"batch_growth": (("1x", 64), ("4x", 128))}
    results = Results(write_few(tmp_path, study=with_copy("constant-peak=0.01", change)))
    curves = [x for x in results.all_curves if (x.kind, x.settings["peak"]) == ("constant", 0.01)]
    (grown,) = [x for x in curves if "batch_growth" in x.settings]
    assert grown.losses == curves[0].losses
    assert curves[0] in results.comparable_curves("constant")
    assert grown not in results.comparable_curves("constant")
    assert results.clock == synthetic_study.CLOCK


def test_study_without_evaluations_is_rejected(tmp_path):
    study = write_study(tmp_path, leave_out=[run.name for run in make_study().runs])
    with pytest.raises(InputError, match="evaluated yet"):
        Results(study)


def test_directory_of_another_run_is_rejected(tmp_path):
    study = write_few(tmp_path)
    file = study.run("constant-peak=0.03").run_dir / "run.json"
    file.write_text((study.run("constant-peak=0.01").run_dir / "run.json").read_text())
    with pytest.raises(InputError, match=r"constant-peak=0\.03 .schedule\.peak"):
        Results(study)
    file.write_text("{")
    with pytest.raises(InputError, match=r"run\.json"):
        Results(study)


def test_runs_on_different_data_are_rejected(tmp_path):
    study = write_few(tmp_path)
    file = study.runs[1].run_dir / "run.json"
    file.write_text(file.read_text().replace('fingerprint": "abc"', 'fingerprint": "x"'))
    with pytest.raises(InputError, match=r"data\.fingerprint"):
        Results(study)


@pytest.mark.parametrize(
    ("change", "setting"),
    [
        ({"eval.tokens": 1024}, r"eval\.tokens"),
        ({"batch_size": 64}, "batch_size"),
        ({"stop": "never"}, r"copy-stop=never: config\.stop"),
    ],
)
def test_incomparable_runs_are_rejected(change, setting, tmp_path):
    study = with_copy("constant-peak=0.01", change)
    written = write_few(tmp_path, study, leave_out=[study.runs[-1].name])
    with pytest.raises(InputError, match=setting):
        Results(written)


def test_two_runs_of_equal_settings_are_rejected(tmp_path):
    study = write_few(tmp_path, study=with_copy("constant-peak=0.01", {}))
    with pytest.raises(InputError, match=r"constant-peak=0\.01 and copy"):
        _ = Results(study).all_curves


def test_torn_records_and_other_versions_are_warnings(tmp_path):
    study = write_few(tmp_path)
    torn, other = (run.run_dir / "records" / "0000.jsonl" for run in study.runs[:2])
    torn.write_text(torn.read_text() + '{"step": 48')
    other.write_text(other.read_text().replace('"version": "0.1.0"', '"version": "9.0"'))
    warnings = []
    results = Results(study, warn=warnings.append)
    assert [str(file) in line for file, line in zip((torn, other), warnings, strict=True)]
    assert {run.state for run in results.runs} == {"finished"}


def test_losses_of_an_average_that_began_late_are_left_out(tmp_path):
    study = write_few(tmp_path)
    (run, *_), step = study.runs, make_study().runs[0].build().clock.step_at("4x")
    writer = RecordWriter(run.run_dir, None, {})
    writer.amend(step, 1, {"eval/f25/kernel_error": 0.2, "eval/f50/kernel_error": 1e-9})
    writer.close()
    warnings = []
    result = Results(study, warn=warnings.append).runs[0]
    assert {m for m, losses in result.losses.items() if "f25" not in losses} == {4.0}
    assert all("f50" in losses for losses in result.losses.values())
    (line,) = warnings
    assert run.name in line
    assert "f25" in line


def test_lost_records_are_a_warning(tmp_path):
    study = write_few(tmp_path)
    run = study.runs[0]
    checkpoint = run.run_dir / "checkpoints" / "10"
    (checkpoint / "meta").mkdir(parents=True)
    (checkpoint / "_CHECKPOINT_METADATA").touch()
    meta = dataclasses.replace(META, step=10, rows=10**6, fingerprint="abc")
    (checkpoint / "meta" / "metadata").write_text(json.dumps(meta.to_json()))
    warnings = []
    Results(study, warn=warnings.append)
    (line,) = [line for line in warnings if "are lost" in line]
    assert line.startswith(f"{run.name}: ")


def test_seeds_and_decays_are_not_compared():
    decay = {"decay__horizon": "2x", "stop": "horizon", "branch__from_run": "trunk"}
    config = small_run.config("run", schedule={"kind": "constant", "peak": 1.0}, **decay)
    identity = config.select(lambda facts: facts.identity)
    assert identity.keys() - compared_settings(config).keys() == {
        *("seed", "data.seed", "schedule.kind", "branch.at"),
        *("decay.horizon", "decay.floor", "decay.shape"),
    }
    cosine = small_run.config("run", schedule={"kind": "cosine", "peak": 1.0, "horizon": "2x"})
    assert "schedule.horizon" not in compared_settings(cosine)
    assert "schedule.peak" in compared_settings(cosine)
