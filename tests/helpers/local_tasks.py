"""Tasks of lm-evaluation-harness of a few local documents, one of each type of output."""

import json
import random

COMMON = """task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {documents}
test_split: test
fewshot_split: test
target_delimiter: ""
metadata:
  version: 1.0
"""
TYPES = {
    "choose": """output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list:
  - metric: acc
  - metric: acc_norm
  - metric: brier_score
""",
    "continue": """output_type: loglikelihood
doc_to_text: "{{question}}"
doc_to_target: "{{choices[answer]}}"
metric_list:
  - metric: perplexity
  - metric: acc
""",
    "read": """output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list:
  - metric: byte_perplexity
  - metric: bits_per_byte
""",
    "write": """output_type: generate_until
doc_to_text: "{{prompt}}"
doc_to_target: "{{choices[answer]}}"
generation_kwargs:
  until: [" b", "ee"]
  max_gen_toks: 12
metric_list:
  - metric: exact_match
  - metric: bleu
""",
}


def make_documents(count=24):
    """Documents of random words, with questions that are empty, end in spaces or are long."""
    words = random.Random(1)

    def text(count):
        return " ".join("".join(words.choices("abcdefghij", k=4)) for _ in range(count))

    documents = []
    for number in range(count):
        question = ("", text(3) + "  ", text(40), text(2), "Zwölf:")[number % 5]
        document = {
            "question": question,
            "prompt": question or "a",
            "choices": [f" {text(n)}" for n in (1, 1, 2, 3)],
            "answer": number % 4,
            "text": text(number * 4 + 1),
        }
        documents.append(document)
    return documents


def write_tasks(folder, **changes):
    """Writes the documents and the tasks; returns the path of each task's file by its type.

    `changes` are lines added to the tasks by type.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "documents.jsonl"
    file.write_text("".join(f"{json.dumps(document)}\n" for document in make_documents()))
    for name, content in TYPES.items():
        common = COMMON.format(name=f"own_{name}", documents=json.dumps(str(file)))
        (folder / f"{name}.yaml").write_text(common + content + changes.get(name, ""))
    return {name: folder / f"{name}.yaml" for name in TYPES}
