"""Read-outs: weights to evaluate that a method computes from its state and the parameters.

A node of an optimizer's state with two methods has read-outs. `iterates()` returns further iterates
of the method: trees like the parameters, by name. `readouts()` returns, by label, the coefficients
of each read-out, a weighted sum of the parameters (`averaging.LIVE`) and the iterates. Coefficients
are float32 scalars that sum to 1.
"""

import operator
from typing import Any

import jax
import optax

from anytime_jax.averaging import LIVE, find_nodes


def iterates(opt_state: optax.OptState) -> dict[str, Any]:
    """Returns the further iterates that a state holds: trees like the parameters, by name.

    Raises:
      ValueError: if the state holds more than one node with read-outs.

    Examples:
      >>> run = optimizers.RunInfo(optax.constant_schedule(1e-3))
      >>> descent = optimizers.ScheduleFreeAdamW().transform(run)
      >>> optimizer = optax.chain(optax.clip(1.0), descent)
      >>> optimizers.iterates(optimizer.init(jnp.ones(2)))
      {'z': Array([1., 1.], dtype=float32)}
      >>> optimizers.iterates(optax.adam(1e-3).init(jnp.ones(2)))
      {}
    """
    state = _find(opt_state)
    return {} if state is None else state.iterates()


def readouts(opt_state: optax.OptState) -> dict[str, dict[str, jax.Array]]:
    """Returns the coefficients of each read-out, by its label and the name of the iterate.

    For a state of `jax.ShapeDtypeStruct`, call `jax.eval_shape(readouts, opt_state)`.

    Raises:
      ValueError: if the state holds more than one node with read-outs.

    Examples:
      >>> run = optimizers.RunInfo(optax.constant_schedule(1e-3))
      >>> optimizer = optimizers.ScheduleFreeAdamW(interpolation=0.5).transform(run)
      >>> optimizers.readouts(optimizer.init(jnp.ones(2)))["x"]
      {'last': Array(2., dtype=float32), 'z': Array(-1., dtype=float32)}
    """
    state = _find(opt_state)
    return {} if state is None else state.readouts()


def eval_params(opt_state: optax.OptState, params: optax.Params) -> dict[str, Any]:
    """Returns the read-outs, weights that a method evaluates: trees like the parameters, by label.

    Examples:
      >>> optimizer = optimizers.ScheduleFreeAdamW().transform(
      ...     optimizers.RunInfo(optax.constant_schedule(1e-3))
      ... )
      >>> params = {"w": jnp.ones(2)}
      >>> optimizers.eval_params(optimizer.init(params), params)["x"]
      {'w': Array([1., 1.], dtype=float32)}
    """
    stored = iterates(opt_state)
    trees = {LIVE: params, **stored}

    def mix(terms: dict[str, jax.Array]) -> Any:
        parts = [trees[name] for name in terms]
        return jax.tree.map(lambda *x: sum(map(operator.mul, terms.values(), x)), *parts)

    coefficients = readouts(opt_state)
    return {k: stored[k] if k in stored else mix(terms) for k, terms in coefficients.items()}


def _has_readouts(node: Any) -> bool:
    return hasattr(node, "readouts") and hasattr(node, "iterates")


def _find(opt_state: optax.OptState) -> Any:
    states = find_nodes(opt_state, _has_readouts)
    if len(states) > 1:
        names = ", ".join(type(state).__name__ for state in states)
        raise ValueError(f"the optimizer state holds {names}; only one may have read-outs")
    return states[0] if states else None
