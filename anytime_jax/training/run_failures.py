"""Failures of a run, as errors that name its last good checkpoint."""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

from anytime_jax.checkpoints import checkpoint_listing
from anytime_jax.distributed import lost_process_exit, processes
from anytime_jax.errors import BucketError, InputError, RunError
from anytime_jax.storage.failures import is_temporary, storage_errors
from anytime_jax.storage.paths import absolute_path
from anytime_jax.training.state_memory import ADVICE, is_out_of_memory


@dataclasses.dataclass
class LastCheckpoint:
    """The last good checkpoint of a run, which its errors name; `step` is 0 if there is none."""

    run_dir: Path
    step: int

    def error(self, what: str, advice: str = "") -> RunError:
        """Returns an error that names the checkpoint."""
        return RunError(f"{what}; {self}" + (f". Try {advice}" if advice else ""))

    def __str__(self) -> str:
        last = f"that of step {self.step:,}" if self.step else "none"
        directory = absolute_path(self.run_dir) / checkpoint_listing.DIRECTORY
        return f"the last good checkpoint in {directory} is {last}"

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Names the checkpoint in errors of a block that reads data."""
        try:
            yield
        except RunError as error:
            raise self.error(str(error)) from error

    @contextlib.contextmanager
    def explain_failures(self) -> Iterator[None]:
        """Names the checkpoint in errors of the block; an expected error becomes one line.

        Expected are the loss of another process, too little memory, and failures of disks and
        buckets.
        """
        try:
            yield
        except (InputError, RunError):
            raise
        except Exception as error:
            failure = self._explain(error)
            if failure is not None:
                raise failure from error
            error.add_note(f"Note that {self}.")
            raise

    def _explain(self, error: Exception) -> RunError | None:
        """Returns an error of one line if the failure is an expected one, else None."""
        if processes.is_sign_of_loss(error):
            return lost_process_exit.make_error(error)
        if is_out_of_memory(error):
            return self.error(f"memory ran out: {str(error)[:300]}; {ADVICE}")
        if not isinstance(error, storage_errors()):
            return None
        failure = self.error(f"{error}. Fix the cause, then run the same command again")
        return BucketError(str(failure)) if is_temporary(error, self.run_dir) else failure
