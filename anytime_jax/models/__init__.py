"""Language model: plain functions of parameters in plain dicts of arrays.

Begin with `decoder`, the only module that uses Flax. `attention`, `norm` and `mixed_einsum` are
parts of the decoder, and `gradient_sum_vjp` adds up gradients where they are computed.
`loss` has the cross-entropy, `sampling` generates text, and `flops` counts FLOPs.
"""
