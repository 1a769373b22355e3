"""The language model: parameters as plain dicts of arrays, functions as plain functions of them.

Begin with `decoder`, the only module that uses Flax. `attention` and `mixed_einsum` are its
parts, `loss` the cross-entropy, `sampling` draws text from it, `flops` counts what it costs.
"""
