"""The code of docs/other_trainers.md, run in the trainers that it is for.

    python other_trainers.py TRAINER FOLDER

FOLDER has the page's blocks, `HEADING_NUMBER.py`. The script writes `result.npz` there: the
learning rate of every update, the weights before the first and after every update, their average
as the trainer has it, and how many numbers differ where the page promises equal ones. It computes
no rate and no average itself.
"""

import os
import pathlib
import runpy
import sys

import numpy as np

ALPHA, WARMUP = 20, 10  # in place of the page's 51,200 and 5,000


def shorten(code):
    assert "51_200" in code
    return code.replace("51_200", str(ALPHA)).replace("5_000", str(WARMUP))


class Blocks:
    def __init__(self, folder):
        self.folder = folder

    def code(self, name):
        return (self.folder / f"{name}.py").read_text()

    def run(self, name, scope):
        code = self.code(name)
        exec(compile(shorten(code) if "51_200" in code else code, name, "exec"), scope)
        return scope


def flat(tensors):
    return np.concatenate([np.asarray(x.detach().float(), np.float64).ravel() for x in tensors])


class Record:
    """The learning rates and weights of a PyTorch optimizer's updates."""

    def __init__(self, optimizer, parameters):
        self.parameters = list(parameters)
        self.rates, self.weights = [], [flat(self.parameters)]
        optimizer.register_step_post_hook(self)

    def __call__(self, optimizer, *_):
        self.rates.append(optimizer.param_groups[0]["lr"])
        self.weights.append(flat(self.parameters))

    def arrays(self, average):
        return {"rates": self.rates, "weights": self.weights, "average": flat(average)}


def make_problem(torch, seed=0):
    """A model, a loss and an endless source of batches."""
    torch.manual_seed(seed)
    layers = torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
    model = torch.nn.Sequential(*layers)

    def loss(model, batch):
        return ((model(batch)[:, 0] - batch.sum(dim=1)) ** 2).mean()

    def batches(count):
        for number in range(count):
            yield torch.randn(16, 6, generator=torch.Generator().manual_seed(number))

    return model, loss, batches


def run_pytorch(blocks, _):
    import torch

    model, loss, batches = make_problem(torch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    record = Record(optimizer, model.parameters())
    scope = blocks.run("PyTorch_0", {})
    scope |= {"model": model, "loss": loss, "batches": batches(200), "optimizer": optimizer}
    scope["validation_batch"] = torch.ones(4, 6)
    blocks.run("PyTorch_2", scope)
    averaged = scope["averaged"]
    optimizer.register_step_post_hook(lambda *_: averaged.update_parameters(model))
    blocks.run("PyTorch_1", scope)
    average = scope["average"]
    live = flat(model.parameters())
    with average.as_weights():
        as_weights = flat(model.parameters())
        loss_of_f25 = float(loss(model, scope["validation_batch"]))
    pairs = [
        (live, flat(model.parameters())),
        (live, record.weights[-1]),
        (as_weights, flat(average.values.values())),
        (loss_of_f25, float(scope["loss_of_f25"])),
    ]
    low = scope["Average"](torch.nn.Linear(2, 2).bfloat16().named_parameters())
    low.update()
    assert {x.dtype for x in low.values.values()} == {torch.float32}
    return record.arrays(average.values.values()) | {
        "averaged_model": flat(averaged.module.parameters()),
        "different": sum(np.count_nonzero(one - other) for one, other in pairs),
    }


def run_nanochat(blocks, _):
    import types

    import torch

    model, loss, batches = make_problem(torch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    record = Record(optimizer, model.parameters())
    args = types.SimpleNamespace(warmup_steps=WARMUP)
    scope = {"args": args, "weight_decay_scaled": 0.3, "orig_model": model}
    blocks.run("nanochat_0", scope)
    for step, batch in enumerate(batches(100)):
        loss(model, batch).backward()
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * scope["get_lr_multiplier"](step)
            group["weight_decay"] = scope["get_weight_decay"](step)
        optimizer.step()
        scope["average"].update()
        optimizer.zero_grad()
    return record.arrays(scope["average"].values.values())


def run_torchtitan(blocks, folder):
    import types

    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torchtitan.components.optimizer.lr_scheduler import LRSchedulersContainer
    from torchtitan.components.optimizer.optimizer import default_adamw

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    scope = blocks.run("torchtitan_0", {})

    def make(rate):
        model, loss, batches = make_problem(torch)
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        config = default_adamw(lr=0.05)
        config.implementation = "for-loop"
        optimizers = config.build(model_parts=[model])
        schedulers = rate.build(optimizers=optimizers, training_steps=100)
        checkpointer = types.SimpleNamespace(states={})
        trainer = types.SimpleNamespace(
            model_parts=[model], optimizers=optimizers, checkpointer=checkpointer
        )
        record = Record(optimizers.optimizers[0], (p.to_local() for p in model.parameters()))
        blocks.run("torchtitan_1", {"trainer": trainer})

        def train(start, stop):
            for number, batch in enumerate(batches(stop)):
                if number >= start:
                    loss(model, batch).backward()
                    optimizers.step()
                    schedulers.step()
                    optimizers.zero_grad()

        states = checkpointer.states | {"optimizer": optimizers, "schedulers": schedulers}
        return model, checkpointer.states["f25"], record, train, states

    model, average, record, train, states = make(scope["InverseSqrt"](warmup_steps=WARMUP))
    train(0, 50)
    dcp.save(states | model.state_dict(), checkpoint_id=folder / "dcp")
    train(50, 100)
    again, resumed, _, train_again, states = make(scope["InverseSqrt"](warmup_steps=WARMUP))
    weights = again.state_dict()
    dcp.load(states | weights, checkpoint_id=folder / "dcp")
    again.load_state_dict(weights)
    train_again(50, 100)
    local = [x.to_local() for x in average.values.values()]
    other = [x.to_local() for x in resumed.values.values()]
    constant = LRSchedulersContainer.Config(warmup_steps=WARMUP, decay_ratio=0.0)
    constant_record = (run := make(constant))[2]
    run[3](0, 100)
    return record.arrays(local) | {
        "constant": constant_record.rates,
        "different": np.count_nonzero(flat(local) - flat(other)),
    }


def run_transformers(blocks, folder):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    torch.set_num_threads(1)
    scope = blocks.run("transformers_0", {})
    config = LlamaConfig(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        vocab_size=32,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    rows = torch.randint(0, 32, (200, 8), generator=torch.Generator().manual_seed(0)).tolist()
    data = [{"input_ids": row, "labels": row} for row in rows]

    def run(resume):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
        arguments = TrainingArguments(
            output_dir=str(folder / "run"),
            **scope["rate"],
            learning_rate=0.02,
            max_steps=40,
            save_steps=20,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
        )
        callback = scope["AverageCallback"]()
        trainer = Trainer(
            model, arguments, train_dataset=data, eval_dataset=data[:8], callbacks=[callback]
        )
        trainer.create_optimizer()
        record = Record(trainer.optimizer, model.parameters())
        trainer.train(resume_from_checkpoint=resume)
        return trainer, callback, record

    trainer, callback, record = run(None)
    live = flat(trainer.model.parameters())
    scope |= {"trainer": trainer, "callback": callback}
    blocks.run("transformers_1", scope)
    average = flat(callback.average.values.values())
    saved = LlamaForCausalLM.from_pretrained(folder / "run" / "f25")
    _, resumed, _ = run(str(folder / "run" / "checkpoint-20"))
    pairs = [
        (live, flat(trainer.model.parameters())),
        (average, flat(saved.parameters())),
        (average, flat(resumed.average.values.values())),
    ]
    assert scope["metrics"]["f25_loss"] != trainer.evaluate()["eval_loss"]
    different = sum(np.count_nonzero(one - other) for one, other in pairs)
    return record.arrays(callback.average.values.values()) | {"different": different}


MAXTEXT = """base_emb_dim=32 base_num_query_heads=2 base_num_kv_heads=2 base_mlp_dim=64 head_dim=16
base_num_decoder_layers=2 vocab_size=64 max_target_length=16 mlp_activations=['gelu'] dtype=float32
weight_dtype=float32 attention=dot_product dataset_type=synthetic async_checkpointing=False
per_device_batch_size=2 hardware=cpu skip_jax_distributed_system=True monitor_goodput=False
enable_goodput_recording=False enable_checkpointing=True checkpoint_period=1 learning_rate=0.01"""


def run_maxtext(blocks, folder):
    os.environ.update(JAX_PLATFORMS="cpu", DECOUPLE_GCLOUD="TRUE", TPU_SKIP_MDS_QUERY="1")
    import json

    import jax
    import maxtext
    import orbax.checkpoint
    from flax import nnx
    from maxtext.common.train_state_nnx import TrainStateNNX
    from maxtext.trainers.pre_train import train

    base = str(pathlib.Path(maxtext.__file__).parent / "configs" / "base.yml")
    arguments = [base, *MAXTEXT.split(), f"base_output_directory={folder}"]
    updates = 16

    def run_block(name, argv):
        program = folder / f"{name}_shortened.py"
        code = blocks.code(name)
        program.write_text(shorten(code) if "51_200" in code else code)
        sys.argv = [str(program), *map(str, argv)]
        runpy.run_path(str(program), run_name="__main__")

    metrics = f"metrics_file={folder / 'metrics.txt'}"
    run_block("MaxText_0", [*arguments, "run_name=run", f"steps={updates}", metrics])
    lines = (folder / "metrics.txt").read_text().splitlines()
    rates = [json.loads(x)["learning/current_learning_rate"] for x in lines]
    checkpoints = folder / "run" / "checkpoints"

    def flatten(tree):
        return np.concatenate([np.float64(x).ravel() for x in jax.tree.leaves(tree)])

    with orbax.checkpoint.PyTreeCheckpointer() as checkpointer:
        states = [checkpointer.restore(checkpoints / f"{t}" / "items") for t in range(updates)]
        average = flatten(states[-1]["opt_state"][1]["averages"]["f25"])
        target = folder / "f25"
        run_block("MaxText_1", [checkpoints / f"{updates - 1}" / "items", target])
        saved = flatten(checkpointer.restore(target)["params"]["params"])
    weights = [flatten(state["params"]["params"]) for state in states]

    loaded = []
    setup = train.train_utils.setup_train_loop

    def setup_and_look(*args, **kwargs):
        parts = setup(*args, **kwargs)
        (state,) = (part for part in parts if isinstance(part, TrainStateNNX))
        loaded.append(flatten(nnx.state(state.model, nnx.Param)))
        return parts

    train.train_utils.setup_train_loop = setup_and_look
    path = f"load_parameters_path={target}"
    train.main(["", *arguments, "run_name=loaded", "steps=1", path])
    different = np.count_nonzero(average - saved) + np.count_nonzero(average - loaded[0])
    weights = [np.zeros_like(weights[0]), *weights]  # theta_0 has no weight in f25 by now
    return {"rates": rates, "weights": weights, "average": average, "different": different}


def run_levanter(blocks, _):
    os.environ["JAX_PLATFORMS"] = "cpu"
    import draccus
    import equinox as eqx
    import jax
    import yaml
    from levanter.optim.config import OptimizerConfig
    from levanter.trainer import TrainerConfig
    from levanter.trainer_state import TrainerState

    blocks.run("Levanter_0", {"__name__": "page"})
    text = (
        blocks.code("Levanter_settings").replace("51200", str(ALPHA)).replace("5000", str(WARMUP))
    )
    settings = yaml.safe_load(text)
    config = draccus.decode(OptimizerConfig, settings["optimizer"])
    trainer = draccus.decode(TrainerConfig, settings["trainer"])
    updates = 100
    rates = [float(config.lr_scheduler(10_000)(t)) for t in range(updates)]
    shorter = [float(config.lr_scheduler(200)(t)) for t in range(updates)]
    model = eqx.nn.MLP(4, "scalar", 8, depth=1, key=jax.random.key(0))
    state = TrainerState.init(
        config.build(10_000),
        model,
        key=jax.random.key(1),
        model_averaging=trainer.model_averaging,
    )

    @eqx.filter_jit(donate="all")
    def update(state, x):
        def loss(model):
            return ((jax.vmap(model)(x) - x.sum(axis=1)) ** 2).mean()

        grads = eqx.filter_grad(loss)(state.model)
        return state.take_step(grads, key=jax.random.key(2))[0]

    def flatten(model):
        leaves = jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))
        return np.concatenate([np.float64(x).ravel() for x in leaves])

    weights = [flatten(state.model)]
    state = jax.tree.map(lambda x: x.copy() if eqx.is_array(x) else x, state)
    for t in range(updates):
        state = update(state, jax.random.normal(jax.random.key(t), (16, 4)))
        weights.append(flatten(state.model))
    different = np.count_nonzero(np.subtract(rates, shorter))
    average = flatten(state.eval_model)
    return {"rates": rates, "weights": weights, "average": average, "different": different}


if __name__ == "__main__":
    name, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    blocks = Blocks(folder)
    (folder / "anytime.py").write_text(shorten(blocks.code("PyTorch_0")))
    sys.path.insert(0, str(folder))  # the blocks import it
    result = globals()[f"run_{name}"](blocks, folder)
    np.savez(folder / "result.npz", **result)
