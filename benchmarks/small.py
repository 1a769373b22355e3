"""The quickstart's run with a model of the paper's kind: what most measurements here are of."""

from ml_collections import ConfigDict

from configs import quickstart


def get_config() -> ConfigDict:
    """Returns the configuration: as many parameters as the quickstart has, in the paper's model."""
    config = quickstart.get_config()
    config.update({"name": "small", "model": {"kind": "olmo", "mlp_width": 192}})
    return config
