"""A run directory with records alone, which grows while it is watched."""

from run_files import run_file
from synthetic_study import CLOCK, make_study

from anytime_jax.checkpoints import run_json
from anytime_jax.checkpoints.metric_records import RecordWriter

LABELS = ("last", "f6.25", "f12.5", "f25", "f50", "f100")


class RecordedRun:
    """Writer of the records of a run in a directory."""

    def __init__(self, run_dir, name="recorded", horizon=None):
        self.run_dir, self._last = run_dir, 0
        run_dir.mkdir(exist_ok=True)
        settings = next(
            run.settings
            for run in make_study().runs
            if run.settings["schedule"].get("horizon") == horizon
        )
        run_json.write_run_file(run_dir, run_file(name=name, config=settings))

    def add(self, *steps, evaluate=True, labels=LABELS):
        """Appends rows in a new segment, as a resumed run does."""
        writer = RecordWriter(self.run_dir, self._last, {})
        for step in steps:
            values = {"train/loss": 6.0 * step**-0.1, "lr": 1e-3, "tokens_per_s": 4e4}
            if evaluate:
                losses = {label: 6.1 * step**-0.1 - 0.02 * i for i, label in enumerate(labels)}
                values |= {f"eval/{label}/loss": loss for label, loss in losses.items()}
            writer.write(step, CLOCK.tokens(step), values)
            self._last = step
        writer.close()
        return self
