"""Compiles MaxText's update for an absent TPU: the worker of `lab.benchmarks.accelerators`.

    python maxtext_program.py OUTPUT SETTING=VALUE ...

A script for an interpreter with MaxText, without anytime_jax. It writes the compiled program to
OUTPUT.hlo and the bytes of its memory to OUTPUT.json.
"""

import json
import pathlib
import sys

import maxtext
from maxtext.trainers.pre_train import train_compile


def main(output, *settings):
    """Runs MaxText's own `train_compile` with settings, and keeps the program that it compiles."""
    compile_update = train_compile.jit_and_compile

    def compile_and_keep(*arguments, **options):
        compiled = compile_update(*arguments, **options)
        memory = compiled.memory_analysis()
        sizes = {"state": memory.argument_size_in_bytes, "temporaries": memory.temp_size_in_bytes}
        pathlib.Path(f"{output}.hlo").write_text(compiled.as_text(), "utf-8")
        pathlib.Path(f"{output}.json").write_text(json.dumps(sizes), "utf-8")
        return compiled

    train_compile.jit_and_compile = compile_and_keep
    base = pathlib.Path(maxtext.__file__).parent / "configs" / "base.yml"
    train_compile.main(["", str(base), *settings])


if __name__ == "__main__":
    main(*sys.argv[1:])
