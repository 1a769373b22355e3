"""Failures of a run, as errors of one line that name its last good checkpoint."""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import jax

from anytime_jax.checkpoints import checkpoint_listing
from anytime_jax.distributed import lost_process_exit, processes
from anytime_jax.errors import BucketError, InputError, RunError
from anytime_jax.storage.failures import is_temporary, storage_errors
from anytime_jax.storage.paths import absolute_path


@dataclasses.dataclass
class LastCheckpoint:
    """The last good checkpoint of a run, which its errors name; `step` is 0 if there is none."""

    run_dir: Path
    step: int

    def error(self, what: str, advice: str = "") -> RunError:
        """Returns an error that names the checkpoint."""
        last = f"that of step {self.step:,}" if self.step else "none"
        directory = absolute_path(self.run_dir) / checkpoint_listing.DIRECTORY
        message = f"{what}; the last good checkpoint in {directory} is {last}"
        return RunError(message + (f". Try {advice}" if advice else ""))

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Names the checkpoint in errors of the block, which reads data."""
        try:
            yield
        except RunError as error:
            raise self.error(str(error)) from error

    @contextlib.contextmanager
    def explain_failures(self) -> Iterator[None]:
        """Turns errors of devices, disks and buckets inside the block into errors of the run."""
        try:
            yield
        except (InputError, RunError, jax.errors.JaxRuntimeError, *storage_errors()) as error:
            failure = self._explain(error)
            if failure is error:
                raise
            raise failure from error

    def _explain(self, error: Exception) -> Exception:
        if processes.is_sign_of_loss(error):
            return lost_process_exit.make_error(error)
        if isinstance(error, jax.errors.JaxRuntimeError):
            advice = "more microbatches, remat or a smaller eval.batch_size, if memory ran out"
            return self.error(str(error)[:300], advice)
        if not isinstance(error, storage_errors()):
            return error
        failure = self.error(f"{error}. Fix the cause, then run the same command again")
        if is_temporary(error, self.run_dir):
            return BucketError(str(failure))
        return failure
