"""Programs that XLA compiled for accelerators: the update of a small model on four devices.

anytime compile --config=configs/150m_inv_sqrt.py --topology=h100:4 --hlo=FILE
  --config.model.layers=2 --config.model.width=128 --config.model.heads=2
  --config.model.mlp_width=512 --config.model.length=256 --config.model.vocab_size=500
  --config.model.embedding_rows=512 --config.model.layer_loop=scan --config.model.remat=products
  --config.batch_size=16 --config.microbatches=2 --config.eval.batch_size=16 --config.mesh.fsdp=2
"""

import functools
import lzma
from pathlib import Path

from anytime_lab.compilation import hlo

MESH = {"data": 2, "fsdp": 2, "tensor": 1}


@functools.cache
def load_program(topology: str) -> hlo.Module:
    """Parses the program for "h100:4" or "v5e:2x2"."""
    path = Path(__file__).parents[1] / "compilation" / "programs"
    return hlo.parse(lzma.open(path / f"{topology.replace(':', '_')}.hlo.xz", "rt").read())
