"""An OLMo-2-shaped decoder of 6.7B parameters, inverse square root, read out through averages.

    python -m anytime_jax.main --config=configs/7b_inv_sqrt.py

Not in the paper, and never trained: no result is known. The peak and alpha are guesses, to be
tuned. 1x is 20 tokens for each of the 6,476,005,376 parameters in blocks. The parameters are split
over eight devices (mesh.fsdp), such as the GPUs of a host. A TPU v5p has the memory to gather all
once an update, which is faster there: --config.mesh.fsdp=1 --config.microbatches=8.
Device memory: anytime compile --config=configs/7b_inv_sqrt.py --topology=h100:8x8
"""

from ml_collections import ConfigDict

from configs import paper_settings


def get_config() -> ConfigDict:
    """Returns the configuration."""
    config = paper_settings.model_300m("7b_inv_sqrt")
    config.batch_size, config.microbatches = 2048, 4
    config.model.update(kind="olmo2", layers=32, heads=32, width=4096, mlp_width=11_008)
    config.model.update(remat="products", layer_loop="scan")
    config.chinchilla_tokens = 20 * 6_476_005_376  # 61,760 steps
    config.stop = "1x"
    config.mesh.fsdp = 8
    config.eval.batch_size = 512  # so that 512 devices can share it
    return paper_settings.inverse_sqrt(config, peak=3e-4, b2=0.95, alpha=51_200.0)
