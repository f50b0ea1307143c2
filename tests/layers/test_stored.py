"""Weights kept in bf16 as a file has them: the bits of the same weights widened whole, in half the memory.

test_stored_files.py loads and saves them; tests/kernels/test_elementwise.py and test_embedding.py test the kernels.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from asynctile import BudgetError, Engine
from asynctile.layers import Trainer
from asynctile.layers.caches import Caches
from asynctile.layers.carriers import forward_table, table
from asynctile.layers.decode import record_decode
from asynctile.layers.floor import floor_demand
from asynctile.layers.model import model_state_of
from asynctile.layers.parameters import Parameters
from asynctile.layers.qwen3.config import Qwen3Config
from asynctile.layers.step import KINDS, parts_of, record
from asynctile.layers.tiling import Tiling
from asynctile.program.grain import FINE, Grain
from asynctile.program.needs import demand_of
from asynctile.program.precision import BF16
from asynctile.program.program import Program
from asynctile.runtime import Runtime
from tests.laws import covering, law
from tests.layers.shapes import Shape
from tests.layers.stored import SHAPES, loaded, matrices_of, nbytes_of, results_in, results_of, write_folder
from tests.layers.test_replicas_trained import by_coroutines

RUNS = {"played": lambda _: None, "by coroutines": by_coroutines}
#: Options of an engine and the cap that is the floor. "spill" becomes a folder.
PLACES: dict[str, tuple[dict[str, Any], str | None]] = {
    "ram": ({"device": "cpu"}, None),
    "ram over a disk": ({"device": "cpu", "spill": True}, "host_memory"),
    "a device at the floor": ({"device": "emulated", "prefetch": 8}, "device_memory"),
    "three tiers": ({"device": "emulated", "device_memory": "64KiB", "spill": True}, "host_memory"),
    "two devices": ({"device": "emulated*2"}, "device_memory"),
}
#: Tiles that fill pages of a file, and few tokens: what moves is weights.
WIDE = Shape(Qwen3Config(n_layer=3, hidden_size=192, intermediate_size=256, num_attention_heads=4, num_key_value_heads=2,
                         head_dim=32, vocab_size=128, block_size=32), 64, 1, 5)  # fmt: skip
#: The kernels that read bf16 where a program computes in float32.
DIRECT = {"copy", "embed_tokens", "embed_positions"}
_expected: dict[str, tuple[Any, ...]] = {}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a folder for each family, whose weights are all in bf16."""
    root = tmp_path_factory.mktemp("stored")
    return {name: write_folder(root / name, shape) for name, shape in SHAPES.items()}


@pytest.fixture(params=["gpt2", "qwen3", "llama", law("mistral"), law("qwen2")])
def family(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


async def expected(folders: dict[str, Path], family: str) -> tuple[Any, ...]:
    """Return the results of the model in float32, with everything resident on `cpu`."""
    if family not in _expected:
        _expected[family] = await results_in(folders[family], SHAPES[family], "float32")
    return _expected[family]


async def options_at(place: str, folder: Path, shape: Shape, spill: Path) -> dict[str, Any]:
    """Return the options of an engine there, with the smallest cap that the model's refusal names."""
    options, cap = PLACES[place]
    options = options | ({"spill": spill} if "spill" in options else {})
    if cap is None:
        return options
    async with Engine(**options, **{cap: 1}) as engine:
        with pytest.raises(BudgetError) as caught:
            await loaded(engine, folder, shape, "stored")
    return {**options, cap: caught.value.floor}


@pytest.mark.parametrize(("family", "place", "prepare"), covering(list(SHAPES), list(PLACES), RUNS))
async def test_no_place_changes_a_bit(
    family: str, place: str, prepare: Any, folders: dict[str, Path], tmp_path: Path
) -> None:
    shape, folder = SHAPES[family], folders[family]
    async with Engine(**await options_at(place, folder, shape, tmp_path)) as engine:
        prepare(engine)
        model = await loaded(engine, folder, shape, "stored")
        assert model_state_of(model).parameters.stored == matrices_of(shape.config)
        assert await results_of(model, shape) == await expected(folders, family)


async def test_programs_that_widen_are_played(family: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    played, start = [], Runtime.start

    async def noted(runtime: Runtime, program: Program, *rest: Any) -> Any:
        job = await start(runtime, program, *rest)
        played.append((program.name, job.played))
        return job

    monkeypatch.setattr(Runtime, "start", noted)
    shape = SHAPES[family]
    async with Engine("cpu") as engine:
        model = await loaded(engine, folders[family], shape, "stored")
        for _ in range(3):
            await model.logits(shape.batch_of_tokens()[0])
    assert played == [("logits", False), ("logits", True), ("logits", True)]


async def test_matrices_take_half_of_every_tier_and_link_and_are_not_written_back(tmp_path: Path) -> None:
    folder, tokens = write_folder(tmp_path / "model", WIDE), WIDE.batch_of_tokens()[0]
    ram, moved = [], []
    for weights in ("float32", "stored"):
        async with Engine("cpu") as engine:
            model = await loaded(engine, folder, WIDE, weights)
            nbytes = engine.statistics().host_used_bytes
            assert nbytes == nbytes_of(model)
            await model.logits(tokens)
            ram.append((nbytes, engine.statistics().host_peak_bytes))
        moved.append([])
        for device, caps in (("emulated", {"device_memory": nbytes // 3}), ("cpu", {"host_memory": nbytes // 3})):
            async with Engine(device, **caps, spill=tmp_path) as engine:
                model, seen = await loaded(engine, folder, WIDE, weights), []
                for _ in range(3):
                    logits = await model.logits(tokens)
                    now = engine.statistics()
                    seen.append((now.uploaded_bytes + now.spill_read_bytes, now.downloaded_bytes + now.spill_written_bytes))
            (first, written), (second, again) = seen[1:]
            assert again - written <= logits.nbytes, "nothing else comes down"
            moved[-1].append(second - first)
    assert ram[1][0] < 0.51 * ram[0][0]
    assert ram[1][1] < 0.6 * ram[0][1]
    assert all(nbytes_of(model) / 3 < stored < 0.55 * wide for wide, stored in zip(*moved, strict=True))


async def test_texts_on_another_share_follow_from_copies_in_bf16(folders: dict[str, Path]) -> None:
    shape = SHAPES["gpt2"]
    _, _, text = await expected(folders, "gpt2")
    prompt = shape.batch_of_tokens()[0][0, :9].tolist()
    async with Engine("cpu") as engine, engine.share(host_memory="8MiB") as part:
        model = await loaded(engine, folders["gpt2"], shape, "stored")
        async with model.serve(part, weights="opened") as server:
            before = part.statistics().host_used_bytes
            tokens = [token.id async for token in server.generate(prompt, max_new_tokens=len(text), temperature=0)]
    assert tokens == text
    assert before == nbytes_of(model)


async def test_a_training_of_such_weights_is_refused_and_leaves_them_as_they_were(folders: dict[str, Path]) -> None:
    shape = SHAPES["gpt2"]
    async with Engine("cpu") as engine:
        model = await loaded(engine, folders["gpt2"], shape, "stored")
        with pytest.raises(ValueError, match=r"keeps transformer\.wte\.weight in bf16 as its file has it, which no"):
            Trainer(model)
        assert await results_of(model, shape) == await expected(folders, "gpt2")
        trained = await loaded(engine, folders["gpt2"], shape, "float32")
        assert (await Trainer(trained).step(*shape.batch_of_tokens())).loss > 0


def parameters_of(shape: Shape, precision: str = "fp32") -> Parameters:
    return Parameters(shape.config, Tiling(shape.config, shape.tile), precision, stored=matrices_of(shape.config))


def widened(program: Program) -> Counter[str]:
    """Return how often each bf16 tile is widened, by its name."""
    copies = (entry.operands for entry in program.operations() if entry.kernel == "copy")
    return Counter(source.name for source, target in copies if source.dtype == BF16 and target.dtype != BF16)


@pytest.mark.parametrize("name", list(SHAPES))
def test_a_forward_pass_widens_each_tile_once_a_device_and_embeddings_read_bf16(name: str) -> None:
    shape = SHAPES[name]
    parameters = parameters_of(shape)
    looked_up = {tensor.name for tensor in shape.config.first_tensors()} - {parameters.head.name}
    tiles = [tile.name for parameter in parameters.values() if parameter.stored and parameter.name not in looked_up
             for tile in parameter.weights.values()]  # fmt: skip
    rows = parameters.tiling.rows(4, shape.length)
    caches = Caches(parameters, 2, 8)
    for devices in (1, 2):
        carriers = forward_table(len(rows.groups), devices) if devices > 1 else ()
        decode = record_decode(parameters, caches, rows=4, pages=(2,) * devices, wanted=2)
        for program in (record("logits", parameters, rows, carriers=carriers), decode):
            assert widened(program) == dict.fromkeys(tiles, devices)
            assert program.devices == devices
            assert {entry.kernel for entry in program.operations() for tile in entry.operands if tile.dtype == BF16} <= DIRECT


def test_each_device_widens_for_the_rows_that_it_carries() -> None:
    shape = SHAPES["llama"]
    parameters = parameters_of(shape)
    rows = parameters.tiling.rows(4, shape.length, 1, 2)
    one, two = (record("gradients", parameters, rows, carriers=carriers) for carriers in ((), table(2, 2)))
    heads = {tile.name for tile in parameters.head.weights.values()}
    for tile, count in widened(one).items():
        assert widened(two)[tile] == count * (2 if tile in heads else 1), "each pass is one replica's"
    assert not any(entry.kernel == "copy" and len({entry.device}) > 1 for entry in two.operations())


def test_a_program_in_bf16_reads_the_tiles_as_they_are() -> None:
    for shape in SHAPES.values():
        parameters = parameters_of(shape, "bf16")
        assert all(parameter.compute is parameter.weights for parameter in parameters.values() if parameter.stored)
        assert not any(parameter.copies for parameter in parameters.values())
        assert not widened(record("logits", parameters, parameters.tiling.rows(shape.batch, shape.length)))


@pytest.mark.parametrize("seed", [*range(6), *map(law, range(6, 40))])
def test_no_program_needs_more_than_the_floor(seed: int) -> None:
    draw = random.Random(seed)
    keys = draw.randint(1, 3)
    config = Qwen3Config(
        n_layer=draw.randint(1, 2), num_attention_heads=keys * draw.choice([1, 2, 4]), num_key_value_heads=keys,
        head_dim=2 * draw.randint(1, 5), hidden_size=draw.randint(1, 60), intermediate_size=draw.randint(1, 60),
        vocab_size=draw.randint(2, 60), block_size=draw.randint(1, 60), attention_bias=draw.random() < 0.5,
        tie_word_embeddings=draw.random() < 0.5)  # fmt: skip
    tile, grain, precision = draw.randint(4, 40), Grain(FINE.ladder, draw.randint(1, 4)), draw.choice(["fp32", "bf16"])
    stored = frozenset(name for name in sorted(matrices_of(config)) if seed % 2 or draw.random() < 0.7)
    parameters = Parameters(config, Tiling(config, tile, grain), precision, stored=stored)
    rows = parameters.tiling.rows(draw.randint(1, 4), draw.randint(1, config.block_size))
    floor = floor_demand(config, tile, grain, precision, stored=stored).floor_nbytes
    for kind in ("gradients", "loss", "logits"):
        assert kind in KINDS
        program = record(kind, parameters, rows, kept=draw.randint(0, parts_of(config)) if kind == "gradients" else 0)
        needed = demand_of([program], parameters.states())
        assert needed.floor_nbytes <= floor, (kind, config, tile, grain.tall, rows.batch, rows.length, needed.what)


def test_the_floor_has_room_for_bf16_tiles_that_count_as_small() -> None:
    """The keys' matrix is an eighth of the largest tile in bf16, and a quarter in float32."""
    config = Qwen3Config(n_layer=1, num_attention_heads=1, num_key_value_heads=1, head_dim=8, hidden_size=40,
                         intermediate_size=40, vocab_size=40, block_size=60)  # fmt: skip
    stored = matrices_of(config)
    parameters = Parameters(config, Tiling(config, 40), stored=stored)
    small, large = demand_of([record("logits", parameters, parameters.tiling.rows(40, 1))], parameters.states()).sizes
    assert floor_demand(config, 40).sizes[0] < small <= floor_demand(config, 40, stored=stored).sizes[0]
    assert large == floor_demand(config, 40, stored=stored).sizes[1]
