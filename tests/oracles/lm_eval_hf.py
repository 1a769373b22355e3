"""What lm-evaluation-harness makes of an exported model: its requests, HFLM's answers, the scores.

python tests/oracles/lm_eval_hf.py MODEL TASKS OUTPUT
"""

import json
import sys

from lm_eval.evaluator import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

model, tasks, output = sys.argv[1:]
found = simple_evaluate(
    model=HFLM(pretrained=model, dtype="float32", device="cpu", batch_size=4),
    tasks=tasks.split(","),
    task_manager=TaskManager(include_defaults=False),
    bootstrap_iters=1000,
)
answers = {
    task: [
        (request, answer)
        for sample in samples
        for request, (answer,) in zip(sample["arguments"], sample["resps"], strict=True)
    ]
    for task, samples in found["samples"].items()
}
scores = {
    task: {name: x for name, x in metrics.items() if isinstance(x, (int, float)) and "," in name}
    for task, metrics in found["results"].items()
}
with open(output, "w", encoding="utf-8") as file:
    json.dump({"answers": answers, "scores": scores}, file)
