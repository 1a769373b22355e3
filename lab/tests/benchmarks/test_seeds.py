"""Seeds that are trained together, against runs that are trained one by one."""

import numpy as np
import small_run

from anytime_jax import api
from anytime_jax.checkpoints.metric_records import read_records
from anytime_lab.study.plan import Study, runs, seeds
from anytime_lab.study.results import Results
from anytime_lab.study.study_files import open_study
from lab.benchmarks import seeds as benchmark


def make_study(data, root):
    config = small_run.settings("unused", data, eval__sets={"a": str(data), "b": str(data)})
    config.eval.positions = (2,)
    config.batch_growth = {"5 steps": 2 * small_run.BATCH}
    config.optimizer.kind = "schedule_free_adamw"  # which has a read-out that is computed
    return Study("two", str(root), runs("one", config, seeds(1, 2), str(root)))


def test_seeds_together_have_the_losses_of_single_runs(dataset, tmp_path, monkeypatch, read_record):
    study = make_study(dataset.path, tmp_path / "single")
    monkeypatch.setattr(benchmark.study_files, "load_file", lambda path: study)
    directory = tmp_path / "together"
    options = ["--study=two.py", f"--directory={directory}", "--seeds=2", "--first=1"]
    assert benchmark.main(options) == 0
    for run in study.runs:
        api.train(run.build(), quiet=True)
    with open_study(directory) as found:
        results = Results(found)
        assert [x.state for x in results.runs] == ["finished"] * 2
    for run in study.runs:
        single = {x.step: x.values for x in read_records(run.run_dir)}
        for row in read_records(directory / run.name):
            assert len(row.values) > 20
            for name, loss in row.values.items():
                np.testing.assert_allclose(loss, single[row.step][name], rtol=2e-5)
    # Another start trains nothing again.
    assert benchmark.main(options) == 0
    assert [row["state"] for row in read_record()["rows"]] == ["trained before"]
