"""Likelihoods and continuations of texts of tokens, in batches over the devices of an evaluation.

Shape suffixes: B batch, L length, T = L + 1.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from anytime_jax.config.model import ModelConfig
from anytime_jax.config.run_config import Config
from anytime_jax.distributed import processes, sharding
from anytime_jax.models import decoder
from anytime_jax.models.decoder import Params
from anytime_jax.models.sampling import SamplingSettings, next_tokens
from anytime_jax.training.step import Program, make_program

_LEAST = 16  # texts are padded to 16, 32, 64, ... tokens, so that few programs serve all lengths
_CHUNK = 64  # tokens of prompts that are read at once, whose logits have to fit the memory


@dataclasses.dataclass(frozen=True)
class TextScorer:
    """Scores and continues texts with any weights of a run.

    Every process must call a method with the same arguments, and gets all results.

    Attributes:
      batch_size: texts in a batch, a multiple of the mesh's parts of a batch.
    """

    config: ModelConfig
    program: Program
    mesh: Mesh
    batch_size: int

    def log_likelihoods(
        self,
        params: Params,
        pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
        report: Callable[[int], object] = lambda done: None,
    ) -> list[tuple[float, bool]]:
        """Returns the log-likelihood in nats of each continuation, and whether it is greedy.

        A pair is a context of at least one token and a continuation of one to `config.length`
        tokens. A text that is too long loses its beginning. A continuation is greedy if each of its
        tokens is the most likely one. `report` is called with the number of pairs of each batch.
        """
        texts = [[*context, *rest][-(self.config.length + 1) :] for context, rest in pairs]
        results: list[tuple[float, bool]] = [(0.0, True)] * len(pairs)
        for rows in self._batches([len(text) for text in texts]):
            longest = max(len(texts[row]) for row in rows)
            length = min(_round_up(longest - 1, _LEAST), self.config.length)
            tokens_BxT = self._pad([texts[row] for row in rows], length + 1)
            scores = self.program.token_losses(params, self._put(tokens_BxT))
            losses_BxL, is_hit_BxL = (processes.gather(x) for x in scores)
            for at, row in enumerate(rows):
                end = len(texts[row]) - 1
                scored = slice(end - len(pairs[row][1]), end)
                loss = losses_BxL[at, scored].astype(np.float64).sum()
                results[row] = -float(loss), bool(is_hit_BxL[at, scored].all())
            report(len(rows))
        return results

    def continuations(
        self,
        params: Params,
        prompts: Sequence[Sequence[int]],
        settings: SamplingSettings,
        count: int,
        is_end: Callable[[int, int], bool],
        report: Callable[[int], object] = lambda done: None,
    ) -> list[list[int]]:
        """Returns at most `count` tokens after each prompt.

        A prompt has at least one token, and at most `config.length - count`. `is_end` is called
        with the number of a prompt and the next token; if it returns true, the continuation ends
        with this token. `report` is called with the number of prompts of each batch.
        """
        results: list[list[int]] = [[] for _ in prompts]
        for rows in self._batches([len(prompt) for prompt in prompts]):
            keys = self._keys(settings.seed, self._fill(rows))
            tokens = self._sample([prompts[row] for row in rows], params, settings, count, keys)
            running = dict(enumerate(rows))
            for new_B in tokens:
                for at, row in [*running.items()]:
                    results[row].append(int(new_B[at]))
                    if is_end(row, results[row][-1]):
                        del running[at]
                if not running:
                    break
            report(len(rows))
        return results

    def _sample(
        self,
        prompts: Sequence[Sequence[int]],
        params: Params,
        settings: SamplingSettings,
        count: int,
        keys_B: jax.Array,
    ) -> Iterator[np.ndarray]:
        """Yields the next token of every prompt of a batch, `count` times."""
        # The keys have the seed; in the static settings, each seed would compile a new program.
        settings = dataclasses.replace(settings, seed=0)
        longest = max(len(prompt) for prompt in prompts)
        read = -(-longest // _CHUNK) * _CHUNK
        cache = self._empty_cache(_round_up(max(read, longest + count), _CHUNK))
        tokens_BxL = self._pad(prompts, read)
        last_B = self._fill([len(prompt) - 1 for prompt in prompts])
        new_B = np.zeros(self.batch_size, np.int32)
        for start in range(0, read, _CHUNK):
            chunk_BxL = self._put(tokens_BxL[:, start : start + _CHUNK])
            within_B = np.clip(last_B, start, start + _CHUNK - 1)
            of_chunk_B, cache = next_tokens(
                self.config,
                settings,
                params,
                cache,
                chunk_BxL,
                np.full_like(last_B, start),
                within_B,
                keys_B,
                0,
            )
            # A prompt that does not end in this chunk keeps its token.
            new_B = np.where(within_B == last_B, processes.gather(of_chunk_B), new_B)
        for number in range(1, count + 1):
            yield new_B
            if number < count:
                position_B = last_B + number
                sampled_B, cache = next_tokens(
                    self.config,
                    settings,
                    params,
                    cache,
                    self._put(new_B[:, None]),
                    position_B,
                    position_B,
                    keys_B,
                    number,
                )
                new_B = processes.gather(sampled_B)

    def _batches(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Yields the numbers of the texts in batches of similar length, the longest first."""
        order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
        for start in range(0, len(order), self.batch_size):
            yield order[start : start + self.batch_size]

    def _empty_cache(self, length: int) -> decoder.Cache:
        shapes = jax.eval_shape(lambda: decoder.init_cache(self.config, 1, length))
        rows = sharding.batch_sharding(self.mesh)
        return {
            name: jnp.zeros((self.batch_size, *x.shape), x.dtype, device=rows)
            for name, x in shapes.items()
        }

    def _pad(self, texts: Sequence[Sequence[int]], length: int) -> np.ndarray:
        """Returns a whole batch, padded at the ends, to which no token of a text attends."""
        tokens_BxL = np.zeros((self.batch_size, length), np.int32)
        for row, text in zip(tokens_BxL, texts, strict=False):
            row[: len(text)] = text
        return tokens_BxL

    def _fill(self, values: Sequence[int]) -> np.ndarray:
        """Returns a number for every row of a batch, 0 for a row without one."""
        return np.array([*values, *[0] * (self.batch_size - len(values))], np.int32)

    def _put(self, rows: np.ndarray) -> jax.Array:
        rows = rows[sharding.local_rows(self.mesh, self.batch_size)]
        return sharding.put_batch(self.mesh, rows, self.batch_size)

    @functools.cached_property
    def _keys(self) -> Callable[[int, np.ndarray], jax.Array]:
        """The function from a seed and the number of each row to the keys of the rows."""

        def keys(seed: int, numbers_B: np.ndarray) -> jax.Array:
            return jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), numbers_B)

        return jax.jit(keys, out_shardings=sharding.batch_sharding(self.mesh))


def open_scorer(
    config: Config, model: ModelConfig, mesh: Mesh, batch_size: int | None = None
) -> TextScorer:
    """Returns a scorer; the default batch size is that of the evaluations in training."""
    size = sharding.round_up_rows(mesh, batch_size or config.eval.batch_size)
    # A row is one text, whatever is in it.
    return TextScorer(model, make_program(config, mesh, model=model), mesh, size)


def _round_up(length: int, least: int) -> int:
    """Returns the first of `least`, 2 * `least`, 4 * `least`, ... that is at least `length`."""
    while least < length:
        least *= 2
    return least
