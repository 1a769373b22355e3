"""Averages of models of any architecture, against NumPy in float64."""

import json
import tracemalloc

import ml_dtypes  # noqa: F401  # its types have names in NumPy
import numpy as np
import pytest
import safetensors.numpy
from small_llama import read_export, write_llama

from anytime_jax.commands import average
from anytime_jax.errors import InputError
from anytime_jax.formats import model_average, model_reader, model_writer
from anytime_jax.formats.model_reader import INDEX, PARITY, PROVENANCE, WEIGHTS, StoredTensor

BITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}  # of a significand
STEPS = (300, 400, 450)


def draw(seed):
    """The tensors of a model that this package does not know."""
    random = np.random.default_rng(seed)
    tensors = {
        f"blocks.{i}.expert": random.standard_normal((6, 5, 3)).astype(dtype)
        for i, dtype in enumerate(BITS)
    }
    tensors["gate"] = np.array([random.standard_normal()] * 70_000, np.float32)
    tensors["scale"] = np.array(random.standard_normal(), np.float16)
    frozen = {"mask": np.array([-np.inf, 0.1], np.float32), "none": np.zeros((0, 4), np.float32)}
    whole = {"counts": np.arange(9), "flags": np.array([True, False])}
    return tensors | frozen | whole


def write(folder, tensors, shards=1):
    """Writes a model as others do: several files have an index."""
    folder.mkdir()
    names = sorted(tensors, reverse=True)
    if shards == 1:
        safetensors.numpy.save_file(tensors, folder / WEIGHTS, {"format": "pt"})
        return folder
    files = {f"part-{i}.safetensors": names[i::shards] for i in range(shards)}
    for file, members in files.items():
        safetensors.numpy.save_file({x: tensors[x] for x in members}, folder / file)
    weight_map = {name: file for file, members in files.items() for name in members}
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    return folder


@pytest.fixture
def inputs(tmp_path, monkeypatch):
    """Three models, in three, one and two files, in a working directory of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(model_average, "_SLICE", 1 << 12)
    return [write(tmp_path / f"model-{i}", draw(i), shards) for i, shards in enumerate((3, 1, 2))]


def f25():
    """The weights that the updates up to each step have in the end: products of tau."""
    survival = [np.prod([2.0 ** (-25 / t) for t in range(s + 1, STEPS[-1] + 1)]) for s in STEPS]
    return np.diff([0.0, *survival])


WSM = [1.0, 1 - np.sqrt(1 / 3), 1 - np.sqrt(2 / 3), 0.0]
KERNELS = {
    "--kernel=uniform": np.full(3, 1 / 3),
    "--kernel=1-sqrt": -np.diff(WSM),
    f"--kernel=f25 --steps {' '.join(map(str, STEPS))}": f25(),
    "--coefficients 1 -1 2": np.array([0.5, -0.5, 1.0]),
}


@pytest.mark.parametrize(("words", "coefficients"), KERNELS.items(), ids=KERNELS)
def test_average_is_that_of_numpy_in_float64(words, coefficients, inputs, tmp_path, command):
    status, _, err = command(average, "--inputs", *inputs, *words.split(), "--output=out")
    assert (status, err) == (0, "")
    models = [draw(i) for i in range(3)]
    found = {}
    for file in sorted(inputs[0].glob("part-*")):
        found |= safetensors.numpy.load_file(tmp_path / "out" / file.name)
    assert found.keys() == models[0].keys()
    for name, written in found.items():
        terms = [c * x[name].astype(float) for c, x in zip(coefficients, models, strict=True)]
        assert (written.dtype, written.shape) == (models[0][name].dtype, models[0][name].shape)
        if all(np.array_equal(x[name], models[0][name]) for x in models):
            assert written.tobytes() == models[0][name].tobytes()
            continue
        exact, size = sum(terms), sum(map(np.abs, terms))
        rounding = 2.0 ** -BITS[written.dtype.name] * np.maximum(np.abs(exact), 2.0**-14)
        sums = size * (1e-14 if written.dtype == float else 4 * 2.0**-24)
        assert np.all(np.abs(written.astype(float) - exact) <= rounding + sums), name


def test_files_are_those_of_the_first_model(inputs, tmp_path, command):
    first = inputs[0]
    kept = {"config.json": b"{ }\n", "modeling.py": b"1/0", "nested/merges.txt": b"\r\n\xff"}
    left = {".cache/x": b"", "training_args.bin": b"", PARITY: b"", "nested/old.safetensors": b""}
    for name, content in (kept | left).items():
        (first / name).parent.mkdir(exist_ok=True)
        (first / name).write_bytes(content)
    steps = ("--kernel=f25", "--steps", *map(str, STEPS))
    assert command(average, "--inputs", *inputs, *steps, "--output=out")[0] == 0
    written = {x for x in (tmp_path / "out").rglob("*") if x.is_file()}
    names = {x.relative_to(tmp_path / "out").as_posix() for x in written}
    shards = {f"part-{i}.safetensors" for i in range(3)}
    assert names == {*kept, *shards, INDEX, PROVENANCE}
    for name in (*kept, INDEX):
        assert (tmp_path / "out" / name).read_bytes() == (first / name).read_bytes()
    for name in shards:  # the table, with the metadata of the framework
        before, after = ((x / name).read_bytes() for x in (first, tmp_path / "out"))
        length = 8 + int.from_bytes(before[:8], "little")
        assert (len(before), before[:length]) == (len(after), after[:length])
    about = json.loads((tmp_path / "out" / PROVENANCE).read_text())
    kernel = np.zeros(STEPS[-1] + 1)
    kernel[[*STEPS]] = f25()
    ideal = np.diff(
        [0, *(np.prod([2 ** (-25 / t) for t in range(s + 1, 451)]) for s in range(451))]
    )
    error = np.sqrt(((kernel - ideal) ** 2).sum() / (ideal**2).sum())
    assert about["kernel_error"] == pytest.approx(error, rel=1e-9)
    assert [x["step"] for x in about["inputs"]] == [*STEPS]
    np.testing.assert_allclose([x["coefficient"] for x in about["inputs"]], f25(), rtol=1e-9)
    digests = [model_reader.weights_digest(x) for x in inputs]
    assert [x["weights_sha256"] for x in about["inputs"]] == digests


def changed(name, tensor):
    return {x: y for x, y in {**draw(1), name: tensor}.items() if y is not None}


REFUSED = {
    "name": changed("gate", None),
    "further": changed("further", np.zeros(3)),
    "shape": changed("gate", np.zeros((7_000, 10), np.float32)),
    "type": changed("gate", np.zeros(70_000, np.float16)),
    "integers": changed("counts", np.arange(9)[::-1].copy()),
    "flags": changed("flags", np.array([True, True])),
    "NaN": changed("gate", np.full(70_000, np.nan, np.float32)),
}


@pytest.mark.parametrize("tensors", REFUSED.values(), ids=REFUSED)
def test_models_without_an_average_are_refused(tensors, inputs, tmp_path, rejected_models):
    rejected_models(inputs[0], write(tmp_path / "other", tensors))


def test_models_that_were_read_wrongly_are_refused(inputs, tmp_path, rejected_models):
    (tmp_path / "link").symlink_to(inputs[0])
    rejected_models(inputs[0], inputs[1], tmp_path / "link")
    index = inputs[0] / INDEX
    index.write_text(json.dumps({"weight_map": {"gate": "part-0.safetensors"}}))
    rejected_models(inputs[0], write(tmp_path / "one", {"gate": draw(0)["gate"]}))


@pytest.fixture
def rejected_models(command, tmp_path):
    """Averages models that have no average, of which nothing remains."""

    def run(*models):
        before = {*tmp_path.iterdir()}
        status, _, err = command(average, "--inputs", *models, "--kernel=uniform", "--output=out")
        assert (status, err.count("\n")) == (2, 1), err
        assert {*tmp_path.iterdir()} == before

    return run


def test_float8_is_copied_if_it_is_equal(tmp_path):
    """NumPy has no such type, and its scales are another tensor."""
    for i, content in enumerate((b"\1\2\3", b"\1\2\3", b"\1\2\4")):
        header = b'{"w":{"dtype":"F8_E4M3","shape":[3],"data_offsets":[0,3]}}'
        (tmp_path / f"{i}").mkdir()
        file = len(header).to_bytes(8, "little") + header + content
        (tmp_path / f"{i}" / WEIGHTS).write_bytes(file)
    models = model_average.open_models([tmp_path / "0", tmp_path / "1"])
    (tmp_path / "out").mkdir()
    model_average.write_average(tmp_path / "out", models, [0.5, 0.5])
    assert (tmp_path / "out" / WEIGHTS).read_bytes() == (tmp_path / "0" / WEIGHTS).read_bytes()
    with pytest.raises(InputError, match="F8_E4M3"):
        model_average.open_models([tmp_path / "0", tmp_path / "2"])


def test_memory_is_a_few_slices(tmp_path, monkeypatch):
    """Of a tensor that is 256 times as large as a slice."""
    size = 1 << 16
    monkeypatch.setattr(model_average, "_SLICE", size)
    for i in range(3):
        write(tmp_path / f"{i}", {"w": np.full((4096, 1024), i, np.float32)})
    models = model_average.open_models([tmp_path / f"{i}" for i in range(3)])
    (tmp_path / "out").mkdir()
    tracemalloc.start()
    try:
        model_average.write_average(tmp_path / "out", models, [0.5, 0.25, 0.25])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < peak < 10 * size
    assert (safetensors.numpy.load_file(tmp_path / "out" / WEIGHTS)["w"] == 0.75).all()


def test_interrupted_average_leaves_nothing(inputs, tmp_path, command, monkeypatch):
    before, read = {*tmp_path.iterdir()}, StoredTensor.read

    def interrupt(tensor, at, size):
        if any(x.name.endswith(".part") for x in tmp_path.iterdir()) and at > 100_000:
            raise KeyboardInterrupt
        return read(tensor, at, size)

    monkeypatch.setattr(StoredTensor, "read", interrupt)
    status, *_ = command(average, "--inputs", *inputs, "--kernel=uniform", "--output=out")
    assert status == 130
    assert {*tmp_path.iterdir()} == before


@pytest.mark.parametrize("exported", [{"vocab_size": 300}, None])
def test_average_can_be_continued(exported, tmp_path, command):
    """Its digests are of its own files, and the size of the vocabulary is still known."""
    folders = [tmp_path / name for name in ("a", "b")]
    for i, folder in enumerate(folders):
        folder.mkdir()
        write_llama(folder)
        tensors = safetensors.numpy.load_file(folder / WEIGHTS)
        tensors = {x: y + np.float32(i) for x, y in tensors.items()}
        safetensors.numpy.save_file(tensors, folder / WEIGHTS)
        if exported:
            model_writer.write_provenance(folder, exported)
    (before, first), out = read_export(folders[0]), tmp_path / "out"
    assert command(average, "--inputs", *folders, "--kernel=uniform", f"--output={out}")[0] == 0
    model, found = read_export(out)
    assert model == before
    np.testing.assert_allclose(found["embedding"], first["embedding"] + 0.5, atol=1e-6)
    digests = json.loads((out / PROVENANCE).read_text())["sha256"]
    assert digests.keys() == {x.name for x in out.iterdir()} - {PROVENANCE}
    model_reader.check_digests(out)
    file = out / WEIGHTS
    file.write_bytes(file.read_bytes()[:-1] + b"\0")
    with pytest.raises(InputError, match="damaged"):
        model_reader.check_digests(out)
