"""Processes of a run on this machine, as on several hosts, with fake devices."""

import contextlib
import pathlib
import re
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from forked_starts import environment

# A message of the collectives, and the lines after it with what is left of those of other threads,
# which write theirs in parts at the same time.
_COLLECTIVES = re.compile(
    r"^.*(?:\[Gloo\]|peer ranks).*\n(?:\d*(?: is connected to \d*)?\n)*", re.MULTILINE
)


class Processes:
    """The processes of a start of a configuration file.

    `slurm` sets the variables that srun sets, instead of options; `variables` are more of each
    process, and `own_flags` are flags that only some processes have.
    """

    def __init__(
        self,
        file: pathlib.Path,
        flags: Sequence[str] = (),
        count: int = 2,
        devices: int = 4,
        slurm: bool = False,
        variables: Sequence[Mapping[str, str]] = ({}, {}),
        own_flags: Mapping[int, Sequence[str]] = {},
    ):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        command = [sys.executable, "-m", "anytime_jax.main", f"--config={file}", *flags]
        self.logs = [file.parent / f"{port}.{i}.log" for i in range(count)]
        self.processes = []
        for i, log in enumerate(self.logs):
            own = environment(devices) | dict(variables[i])
            options = [f"--coordinator=localhost:{port}", f"--processes={count}", f"--process={i}"]
            if slurm:
                options = ["--cluster"]
                own |= {"SLURM_JOB_ID": str(port), "SLURM_STEP_NODELIST": "localhost"}
                own |= {"SLURM_NTASKS": str(count), "SLURM_STEP_NUM_NODES": "1"}
                own |= {"SLURM_PROCID": str(i), "SLURM_LOCALID": str(i)}
            options = options if count > 1 else []
            with log.open("w") as output:
                streams = {"stdout": output, "stderr": subprocess.STDOUT}
                words = [*command, *options, *own_flags.get(i, ())]
                self.processes.append(subprocess.Popen(words, env=own, **streams))

    def output(self, i: int) -> str:
        """The output of a process, without messages of the collectives."""
        return "\n".join(_COLLECTIVES.sub("", self.logs[i].read_text()).splitlines())

    def wait(self, seconds: float = 1_200) -> list[int]:
        """Waits for the exit statuses."""
        deadline = time.monotonic() + seconds
        try:
            return [x.wait(max(0.1, deadline - time.monotonic())) for x in self.processes]
        finally:
            for x in self.processes:
                with contextlib.suppress(OSError):
                    x.kill()

    def succeed(self, seconds: float = 240) -> None:
        """Waits for the end, with exit status 0."""
        count = len(self.logs)
        assert self.wait(seconds) == [0] * count, "".join(map(self.output, range(count)))
