"""Runs of one shape as one program: a device that one small model leaves idle trains many.

The state of every run gets a leading axis R, and one call updates all of them (`jax.vmap`). What
differs from run to run is data: the seed, the order of the text, the learning rate, and Adam's
numbers. All else is as if each run were alone: its directory, records, checkpoints, averages, and
what it says. Losses agree with those of a run alone to the rounding of sums in another order.

    with everybody's wish for an update    one call of the vectorised train step
    with those who want an evaluation      one vectorised pass over the validation windows
    with one that wants its state          a slice of the whole, to be saved

A run that ends or breaks leaves, and the others go on in a smaller program.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from anytime_jax.config.schema import Config
from anytime_jax.data.dataset import DatasetInfo
from anytime_jax.data.windows import Windows
from anytime_jax.distributed import sharding
from anytime_jax.errors import InputError, RunError
from anytime_jax.formatting import format_bytes
from anytime_jax.training import preflight, step
from anytime_jax.training.evaluator import weight_trees
from anytime_jax.training.loop import Ask, Asks, Current, Evaluation, Outcome, Run, Update
from anytime_jax.training.optimizer import Hyperparameters
from anytime_jax.training.progress import Display
from anytime_jax.training.step import Metrics, Program, TrainState
from anytime_jax.training.trainer import begun, make_evaluator

_BATCHES = 64  # the latest that were read, for the runs that are at the same place


@dataclasses.dataclass(frozen=True)
class Member:
    """A run that is to be part of a fleet.

    Attributes:
      config: its configuration.
      display: what a person sees of it.
    """

    config: Config
    display: Display


def train(
    members: Sequence[Member],
    mesh: Mesh,
    dataset: DatasetInfo,
    interrupted: Callable[[], bool] = lambda: False,
) -> list[Outcome | Exception]:
    """Trains runs of one shape, each from its latest checkpoint, or from the start, to its stop.

    Args:
      members: the runs, of one shape (`jobs.Job.shape`).
      mesh: of a single device.
      dataset: prepared token windows.
      interrupted: asked after every update and between the batches of an evaluation; once true,
        every run saves and ends.

    Returns:
      for each run how it ended, or the InputError or RunError that ended it; the others go on.

    Raises:
      InputError: if the device has no room for all of them.
    """
    configs = [member.config for member in members]
    _check_room(configs, mesh)
    programs, read = make_programs(configs, mesh), _reader(dataset)
    ended: dict[int, Outcome | Exception] = {}
    with contextlib.ExitStack() as stack:
        seats = []
        for i, (member, program) in enumerate(zip(members, programs, strict=True)):
            try:
                preflight.check_machine(member.config, mesh, program)
                run = stack.enter_context(
                    begun(member.config, mesh, dataset, member.display, program=program, read=read)
                )
            except (InputError, RunError, OSError) as error:
                ended[i] = error
                continue
            if isinstance(run, Outcome):
                ended[i] = run
            else:
                seats.append(_Seat(i, run, run.asks(interrupted)))
        if seats:
            _Fleet(seats, mesh, dataset, interrupted, ended).drive()
    return [ended[i] for i in range(len(members))]


class _Seat:
    """A run's place in a fleet: what it asks for, and what it was answered last."""

    def __init__(self, number: int, run: Run, asks: Asks):
        self.number, self.run, self._asks = number, run, asks
        self.ask: Ask | None = None
        self.ended: Outcome | Exception | None = None

    def answer(self, given: Any) -> None:
        """Lets the run go on to what it asks for next."""
        self._go_on(self._asks.send, given)

    def fail(self, error: Exception) -> None:
        """Tells the run that what it asked for cannot be had."""
        self._go_on(self._asks.throw, error)

    def _go_on(self, how: Callable[[Any], Ask], given: Any) -> None:
        self.ask = None
        try:
            self.ask = how(given)
        except StopIteration as end:
            self.ended = end.value
        except (InputError, RunError, OSError) as error:
            self.ended = error


class _Fleet:
    """Runs under way together."""

    def __init__(
        self,
        seats: Sequence[_Seat],
        mesh: Mesh,
        dataset: DatasetInfo,
        interrupted: Callable[[], bool],
        ended: dict[int, Outcome | Exception],
    ):
        self._seats, self._mesh, self._interrupted = list(seats), mesh, interrupted
        self._ended = ended
        config = seats[0].run.config
        program = jax.jit(
            jax.vmap(
                functools.partial(step.eval_step, config.model, sharding.ShardingConstraint(mesh)),
                in_axes=(0, None, None),
            )
        )
        self._evaluate = make_evaluator(config, mesh, dataset, program)
        self._states = stack([seat.run.take_state() for seat in seats], mesh)
        self._update = make_update([seat.run.config for seat in seats], mesh)

    def drive(self) -> None:
        """Answers all that the runs ask for until the last of them has ended."""
        for seat in self._seats:
            seat.answer(None)
        while self._seats:
            self._serve()
            self._let_go()
            if self._seats:
                self._make_updates()

    def _serve(self) -> None:
        """Answers until every run that has not ended wants an update."""
        while True:
            for i, seat in enumerate(self._seats):
                while isinstance(seat.ask, Current):
                    seat.answer(_pick(self._states, i))
            wanting = [i for i, seat in enumerate(self._seats) if isinstance(seat.ask, Evaluation)]
            if not wanting:
                return
            self._evaluate_some(wanting)

    def _evaluate_some(self, wanting: Sequence[int]) -> None:
        """Evaluates the weights of the runs at some places, in one pass."""
        seats = [self._seats[i] for i in wanting]
        try:
            trees = weight_trees(self._states)
            if len(wanting) < len(self._seats):
                trees = _take(trees, np.asarray(wanting))
            losses = self._evaluate.losses(trees, self._interrupted)
        except Exception as error:  # the runs have words for it
            for seat in seats:
                seat.fail(error)
            return
        for i, seat in enumerate(seats):
            seat.answer(losses and {label: float(each[i]) for label, each in losses.items()})

    def _let_go(self) -> None:
        """Takes the runs that have ended out of the program."""
        for seat in self._seats:
            if seat.ended is not None:
                self._ended[seat.number] = seat.ended
        staying = [i for i, seat in enumerate(self._seats) if seat.ended is None]
        if len(staying) == len(self._seats):
            return
        self._seats = [self._seats[i] for i in staying]
        if self._seats:
            self._states = _take(self._states, np.asarray(staying))
            self._update = make_update([seat.run.config for seat in self._seats], self._mesh)

    def _make_updates(self) -> None:
        asks = [seat.ask for seat in self._seats]
        updates = [ask for ask in asks if isinstance(ask, Update)]
        tokens_RxBxT = np.stack([ask.tokens for ask in updates])
        try:
            self._states, metrics = self._update(
                self._states, tokens_RxBxT, updates[0].update_averages
            )
        except Exception as error:  # the runs have words for it
            for seat in self._seats:
                seat.fail(error)
            return
        for i, seat in enumerate(self._seats):
            seat.answer({name: _Element(each, i) for name, each in metrics.items()})


@dataclasses.dataclass(frozen=True)
class _Element:
    """One run's number among those of all, fetched from the device for all of them together."""

    of_all: jax.Array
    place: int

    def __array__(self, *unused: Any, **options: Any) -> np.ndarray:
        """Waits for the update, if it is still under way."""
        return np.asarray(self.of_all)[self.place]


def _reader(dataset: DatasetInfo) -> Callable[..., Iterator[np.ndarray]]:
    """Does what `loop.read_stream` does, for all runs: the same windows are read once."""

    @functools.cache
    def windows(seed: int, repeat: bool, length: int) -> Windows:
        return Windows(dataset, "train", length=length, seed=seed, repeat=repeat)

    @functools.lru_cache(maxsize=_BATCHES)
    def batch(order: Windows, samples: int, batch_size: int) -> np.ndarray:
        return order.batch(samples, batch_size)

    def read(
        config: Config, dataset: DatasetInfo, samples: int, batch_size: int, rows: slice
    ) -> Iterator[np.ndarray]:
        del dataset
        order = windows(config.data.seed, config.data.repeat, config.model.length)
        while True:
            yield batch(order, samples, batch_size)[rows]
            samples += batch_size

    return read


def _check_room(configs: Sequence[Config], mesh: Mesh) -> None:
    there = sharding.device_memory(mesh)
    each = preflight.measure_on(configs[0], mesh)
    if there is not None and len(configs) * each.least > there:
        raise InputError(
            f"{len(configs)} runs of {format_bytes(each.least)} each take more than the device's "
            f"{format_bytes(there)}: --fleet={max(1, there // each.total)} or fewer at once"
        )


def make_programs(configs: Sequence[Config], mesh: Mesh) -> list[Program]:
    """Returns the functions of each run alone, of which all that compiles is shared.

    Args:
      configs: the runs, of one shape.
      mesh: of a single device.
    """
    first, whole = configs[0], step.make_program(configs[0], mesh)
    begin = jax.jit(
        functools.partial(step.init_state, first),
        out_shardings=whole.state_shardings,
        compiler_options=step.fast_compile_options(mesh),
    )
    return [
        dataclasses.replace(whole, init=functools.partial(begin, jax.random.key(config.seed)))
        for config in configs
    ]


def make_update(configs: Sequence[Config], mesh: Mesh) -> jax.stages.Wrapped:
    """Returns the vectorised train step of some runs, `(states, tokens_RxBxT, update_averages)`.

    It gives what `step.Program.train_step` does, with an axis R in front; `states` is donated.

    Args:
      configs: the runs, of one shape.
      mesh: of a single device.
    """
    first, constrain = configs[0], sharding.ShardingConstraint(mesh)
    listed: list[Any] = [
        _as_data([getattr(x.optimizer, n) for x in configs]) for n in Hyperparameters._fields
    ]
    numbers = Hyperparameters(*listed)
    axes: Any = Hyperparameters(*(0 if isinstance(x, np.ndarray) else None for x in numbers))

    def one(
        state: TrainState,
        tokens_BxT: jax.Array,
        rate: jax.Array,
        own: Hyperparameters,
        update_averages: bool,
    ) -> tuple[TrainState, Metrics]:
        def schedule(count: jax.Array) -> jax.Array:
            del count
            return rate

        return step.train_step(
            first, schedule, own, constrain, None, state, tokens_BxT, update_averages
        )

    def update(
        states: TrainState, tokens_RxBxT: jax.Array, update_averages: bool
    ) -> tuple[TrainState, Metrics]:
        rates_R = jnp.stack([x.schedule(states.step[i]) for i, x in enumerate(configs)])
        every = jax.vmap(
            functools.partial(one, update_averages=update_averages), in_axes=(0, 0, 0, axes)
        )
        return every(states, tokens_RxBxT, rates_R, numbers)

    return jax.jit(update, static_argnums=2, donate_argnums=0)


def _as_data(values: Sequence[float]) -> Any:
    """A number that is the same for all runs, as it is; else one for each."""
    return values[0] if len(set(values)) == 1 else np.asarray(values, np.float32)


def stack(states: Sequence[TrainState], mesh: Mesh) -> TrainState:
    """Returns the states of some runs as one, with an axis R in front; theirs are gone.

    By way of the host: on the device it would be a program with an operand for every array of every
    run, which takes a minute to compile for 256 of them.

    Args:
      states: the states, which are deleted as they are taken over.
      mesh: of a single device.
    """
    whole = sharding.replicated(mesh)

    def one(*leaves: jax.Array) -> jax.Array:
        of_all = np.stack(leaves)
        for leaf in leaves:
            leaf.delete()
        return jax.device_put(of_all, whole)

    return jax.tree.map(one, *states)


@jax.jit
def _take(tree: Any, places: np.ndarray) -> Any:
    return jax.tree.map(lambda leaf: leaf[places], tree)


@jax.jit
def _pick(tree: Any, place: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[place], tree)
