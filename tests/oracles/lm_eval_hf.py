"""What lm-evaluation-harness makes of an exported model: its requests, HFLM's answers, the scores.

The likelihoods of whole texts are computed by hand too, after each token that may begin a text.

python tests/oracles/lm_eval_hf.py MODEL TASKS OUTPUT
"""

import json
import sys

import torch
from lm_eval.evaluator import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from transformers import AutoModelForCausalLM, AutoTokenizer

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
tokenizer = AutoTokenizer.from_pretrained(model)
decoder = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
length = decoder.config.max_position_embeddings
befores = {"eos": tokenizer.eos_token_id, tokenizer.bos_token: tokenizer.bos_token_id}


def after(before, text):
    """Log-likelihood of a text in windows that predict each of its tokens once."""
    ids, total = [before, *tokenizer.encode(text, add_special_tokens=False)], 0.0
    for start in range(1, len(ids), length):
        end = min(start + length, len(ids))
        window = torch.tensor(ids[max(0, end - 1 - length) : end])
        with torch.no_grad():
            log_p = decoder(window[None, :-1]).logits[0].double().log_softmax(-1)
        losses = log_p.gather(1, window[1:, None])[:, 0]
        total += losses[start - end :].sum().item()
    return total


rolling = {
    text: {name: after(before, text) for name, before in befores.items() if before is not None}
    for (text,), _ in answers["own_read"]
}
with open(output, "w", encoding="utf-8") as file:
    json.dump({"answers": answers, "scores": scores, "rolling": rolling}, file)
