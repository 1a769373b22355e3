"""Language model: plain functions of parameters in plain dicts of arrays.

Begin with `decoder`, the only module that uses Flax. `attention` and `mixed_einsum` are its parts.
`loss` has the cross-entropy, `sampling` generates text, and `flops` counts FLOPs.
"""
