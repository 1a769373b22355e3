"""Collectives of an update on eight fake devices, by the laboratory's reader of programs."""

import jax
import pytest

from anytime_jax.config import run_config
from anytime_jax.config.kinds import NOBODY
from anytime_jax.config.mesh import MeshConfig
from anytime_jax.distributed import sharding
from anytime_jax.distributed.device_specs import DeviceSpec
from anytime_jax.models import decoder
from anytime_jax.training import step
from anytime_lab.compilation import hlo, roofline
from configs import quickstart


@pytest.mark.parametrize("axes", [(8, 1, 1), (2, 2, 1)], ids=str)
def test_gradients_are_summed_over_data_once_an_update(axes):
    devices = jax.devices()[: axes[0] * axes[1] * axes[2]]
    mesh = sharding.make_mesh(MeshConfig(*axes), devices)
    config = quickstart.get_config()
    config.model.update(layers=1, width=16, heads=2, mlp_width=32, length=8)
    config.update(batch_size=16, microbatches=2, averages=())
    config = run_config.build(config.to_dict(), trust=NOBODY)
    update = step.make_program(config, mesh).lower_update().compile()
    spec = DeviceSpec(peak_flops=1e12, bandwidth=1e12)
    program = roofline.analyze(hlo.parse(update.as_text()), spec, dict(mesh.shape))
    of_data = [x for x in program.collectives if "data" in x.axes]
    assert of_data
    assert not any(x.in_loop for x in of_data)
    # Gradients are reduced, and weights gathered.
    both = 2 * 4 * decoder.count_params(config.model)["all"] / axes[1]
    sizes = [x.bytes * (axes[0] if x.kind == "reduce-scatter" else 1) for x in of_data]
    total = sum(x.calls * size for x, size in zip(of_data, sizes, strict=True))
    assert total == pytest.approx(both, rel=0.1)
