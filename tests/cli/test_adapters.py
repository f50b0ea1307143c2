"""Adapters from the command line: trained, resumed, measured, written with, merged; and what is refused."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from math import prod
from pathlib import Path
from typing import Any

import pytest

from asynctile import Engine
from asynctile.cli import main
from asynctile.cli.display import PlainDisplay
from asynctile.cli.pace import Ahead
from asynctile.cli.saved_model import Saved
from asynctile.layers import GPT2Config, LlamaConfig, LoRA, Model
from asynctile.layers.config import Config
from asynctile.layers.layout import shapes
from asynctile.layers.tokenizer import ByteTokenizer
from asynctile.layers.tuning import Tuning
from tests.cli.conftest import PNG, Program, after_each_step
from tests.cli.moments import outcome
from tests.cli.test_refusals import refused
from tests.layers.adapters import layers_of
from tests.test_house import ROOT

LLAMA = LlamaConfig(n_layer=2, hidden_size=32, intermediate_size=40, num_attention_heads=4, num_key_value_heads=2,
                    vocab_size=256, block_size=32)  # fmt: skip
GPT = GPT2Config(n_layer=1, n_head=2, n_embd=16, block_size=32, vocab_size=256)
OPTIONS = ("--lora", "r=4,alpha=16,targets=q_proj+v_proj", "--lr", 0.1, "--steps", 3, "--save-every", 2, "--validate-every", 2,
           "--batch-size", 2, "--device", "cpu", "--warmup", 0)  # fmt: skip


def made(folder: Path, config: Config = LLAMA) -> Path:
    async def write() -> None:
        async with Engine("cpu") as engine:
            await (await Model.create(engine, config, seed=1)).save_pretrained(folder, dtype="bfloat16")

    asyncio.run(write())
    ByteTokenizer().save(folder)
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("models") / "base")


@pytest.fixture(scope="module")
def trained(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three steps."""
    place = tmp_path_factory.mktemp("runs")
    (place / "text.txt").write_text("the tile moved from one tier to another\n" * 200)
    words = ["train", "--data", place / "text.txt", "--model", base, "--out", place / "run", *OPTIONS]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as said:
        patch.setattr("asynctile.layers.plot.png", lambda curves, figure: PNG)
        assert main([str(word) for word in words]) == 0
    assert f"asynctile merge BASE {place / 'run' / 'checkpoints' / 'step-000003'} OUT makes one model" in said.getvalue()
    return place / "run"


GREEDY = ("--prompt", "the tile", "--temperature", 0, "--max-new-tokens", 12)


def test_a_run_trains_the_adapter_alone_and_its_checkpoints_are_peft_folders(trained: Path, base: Path) -> None:
    newest, best = trained / "checkpoints" / "step-000003", trained / "checkpoints" / "best"
    for folder in (newest, best):
        values = json.loads((folder / "adapter_config.json").read_text())
        assert (values["r"], values["lora_alpha"], values["target_modules"]) == (4, 16, ["q_proj", "v_proj"])
        assert values["base_model_name_or_path"] == str(base)
        assert not (folder / "config.json").exists() and (folder / "tokenizer.json").exists()
        assert (folder / "adapter_model.safetensors").stat().st_size < (base / "model.safetensors").stat().st_size
    assert json.loads((trained / "run.json").read_text())["options"]["lora"] == "r=4,alpha=16,targets=q_proj+v_proj"
    assert "| `--lora` | r=4,alpha=16,targets=q_proj+v_proj |" in (newest / "README.md").read_text()
    state = json.loads((newest / "trainer.json").read_text())
    assert state["base"]["weights"] == "stored", "frozen weights in bfloat16 are kept so"
    losses = [json.loads(line)["loss"] for line in (trained / "metrics.jsonl").read_text().splitlines() if '"loss"' in line]
    assert losses[-1] < losses[0] - 0.05, "an adapter that is not used learns nothing"


def test_a_run_its_best_and_an_adapter_on_its_base_write_and_measure_the_same(
    program: Program, trained: Path, base: Path, tmp_path: Path
) -> None:
    newest = trained / "checkpoints" / "step-000003"
    plain = program("generate", base, *GREEDY)
    wanted = program("generate", trained, *GREEDY)
    assert wanted[0] == plain[0] == 0 and wanted[1] != plain[1]
    for words in ([newest], [base, "--adapter", newest], [base, "--adapter", trained]):
        assert program("generate", *words, *GREEDY) == wanted
    assert program("generate", trained / "checkpoints" / "best", *GREEDY)[0] == 0
    merged = tmp_path / "merged"
    status, out, err = program("merge", base, trained, merged, "--dtype", "float32")
    assert (status, err) == (0, "") and re.search(rf"adapter +{newest}$", out, re.MULTILINE)
    assert program("generate", merged, *GREEDY) == wanted
    losses = []
    for words in ([trained], [trained / "checkpoints" / "best"], [merged, "--data", trained.parent / "text.txt"],
                  [base, "--adapter", newest, "--data", trained.parent / "text.txt"],
                  [base, "--data", trained.parent / "text.txt"]):  # fmt: skip
        status, out, err = program("evaluate", *words)
        assert (status, err) == (0, "")
        losses.append(float(re.findall(r"^loss +([\d.]+)", out, re.MULTILINE)[0]))
    assert losses[2] == pytest.approx(losses[3], abs=2e-6)
    assert max(losses[:4]) < losses[4] - 0.1, "the base without the adapter is worse"


def test_a_stopped_run_has_the_outcome_of_a_whole_one(
    program: Program, base: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--data", text, "--model", base, *OPTIONS, "--sample-tokens", 2)
    assert program("train", "--out", tmp_path / "whole", *words)[0] == 0
    after_each_step(monkeypatch, lambda step: os.kill(os.getpid(), signal.SIGINT) if step == 1 else None)
    assert program("train", "--out", tmp_path / "run", *words)[0] == 130
    status, out, err = program("train", "--resume", "--out", tmp_path / "run")
    assert (status, err) == (0, "") and "step-000001, step 1" in out
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")
    assert program("plan", "--resume", "--out", tmp_path / "run")[0] == 0
    refused(program("train", "--resume", "--out", tmp_path / "run", "--lora", "r=8"),
            "--lora r=8 differs from r=4,alpha=16,targets=q_proj+v_proj in the run")  # fmt: skip


@pytest.mark.laws
def test_a_run_that_is_killed_at_every_moment_has_the_outcome_of_a_whole_one(
    program: Program, base: Path, text: Path, tmp_path: Path
) -> None:
    words = ("--data", text, "--model", base, *OPTIONS, "--sample-tokens", 2)
    assert program("train", "--out", tmp_path / "whole", *words)[0] == 0
    killed = [sys.executable, "-m", "tests.cli.moments", tmp_path / "killed", *words]
    done = subprocess.run(list(map(str, killed)), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert any(moment.startswith("before the rename to step-000002 ") for moment in json.loads(done.stdout))
    assert outcome(tmp_path / "killed" / "run") == outcome(tmp_path / "whole")


def test_a_base_that_changed_or_left_is_refused_when_a_run_continues(program: Program, text: Path, tmp_path: Path) -> None:
    base, run = made(tmp_path / "model", GPT), tmp_path / "run"
    words = ("--data", text, "--batch-size", 2, "--device", "cpu", "--lora", "r=2", "--freeze", "*lora_A*")
    assert program("train", "--model", base, "--out", run, "--steps", 1, *words)[0] == 0
    checkpoint = run / "checkpoints" / "step-000001"
    assert json.loads((checkpoint / "trainer.json").read_text())["freeze"] == ["*lora_A*"]
    shutil.move(base, tmp_path / "elsewhere")
    resumed = ("train", "--resume", "--out", run, "--steps", 2)
    refused(program(*resumed), f"--model {base} cannot be read")
    refused(program("generate", run, *GREEDY), f"names the base '{base}', which is no folder here", command="generate")
    assert program("generate", tmp_path / "elsewhere", "--adapter", run, *GREEDY)[0] == 0
    shutil.copytree(tmp_path / "elsewhere", base)
    weights = bytearray((base / "model.safetensors").read_bytes())
    for place in range(len(weights) // 2, len(weights), 7):
        weights[place] ^= 1
    (base / "model.safetensors").write_bytes(weights)
    (base / "checksums.json").unlink()
    refused(program(*resumed), f"{checkpoint} holds an adapter of another base: the weights in {base} are not those")
    refused(program("merge", base, run, tmp_path / "out"), "is an adapter of another base", command="merge")
    refused(program("generate", base, "--adapter", run, *GREEDY), "is an adapter of another base", command="generate")
    assert program(*resumed, "--model", tmp_path / "elsewhere")[0] == 0
    again = program("train", "--resume", "--out", run, "--steps", 3)
    assert again[0] == 0, "the run remembers where its base is now"


def test_frozen_tensors_are_remembered_and_read_from_a_file(program: Program, text: Path, tmp_path: Path) -> None:
    base, run, words = made(tmp_path / "model", GPT), tmp_path / "run", ("--freeze", "*wte*", "--freeze", "*wpe*")
    usual = ("--model", base, "--data", text, "--batch-size", 2, "--device", "cpu", "--steps", 1)
    assert program("train", *usual, *words, "--out", run)[0] == 0
    status, out, err = program("train", "--resume", "--out", run, "--steps", 2)
    assert (status, err) == (0, "") and f"of {GPT.parameter_count:,} parameters are trained" in out.replace("\n", " ")
    (tmp_path / "run.toml").write_text('freeze = ["*wte*", "*wpe*"]\n')
    assert program("train", *usual, "--config", tmp_path / "run.toml", "--out", tmp_path / "other")[0] == 0
    for place in (run, tmp_path / "other"):
        assert json.loads((place / "run.json").read_text())["options"]["freeze"] == ["*wte*", "*wpe*"]
    refused(program("train", "--resume", "--out", run, "--freeze", "*wte*"),
            "--freeze *wte* differs from --freeze *wte* --freeze *wpe* in the run")  # fmt: skip
    record = json.loads((run / "run.json").read_text())
    record["options"]["freeze"] = ["", 3]
    (run / "run.json").write_text(json.dumps(record))
    refused(program("train", "--resume", "--out", run), "run.json was damaged or edited: freeze:")


@pytest.mark.parametrize(("words", "said"), [
    (("--lora", "r=4"), "--lora trains an adapter on the weights of a model, and no --model names one; name the folder"),
    (("--lora", "r=4", "--model", "gpt2"), "and --model gpt2 makes a new one"),
    (("--lora", "r=4", "--model", "CONFIG"), "makes a new one"),
    (("--lora", "rank=4"), "'rank=4' cannot be used; expected settings such as r=16,alpha=32,targets=q_proj+v_proj"),
    (("--lora", "r=4,r=8"), "each at most once"),
    (("--lora", "r=0"), "r '0' cannot be used; expected a whole number of 1 or more"),
    (("--lora", "alpha=-1"), "alpha '-1' cannot be used; expected a number above 0"),
    (("--lora", "targets=a++b"), "expected names of layers"),
    (("--lora", "targets=lm_head", "--model", "BASE"), "--lora targets=lm_head: targets has 'lm_head', which names no layer"),
    (("--lora", "r=2", "--freeze", "*lora_*", "--model", "BASE"), "freeze is ('*lora_*',), which leaves nothing to train"),
    (("--freeze", "nothing*", "--model", "BASE"), "--freeze has 'nothing*', which matches no tensor"),
    (("--freeze", "*", "--model", "BASE"), "leaves nothing to train"),
])  # fmt: skip
def test_what_cannot_be_adapted_is_refused_before_anything_is_made(
    program: Program, base: Path, text: Path, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    places = {"BASE": base, "CONFIG": base / "config.json"}
    given = [str(places.get(word, word)) for word in words]
    tokenizer = () if "BASE" in words else ("--tokenizer", "bytes")
    refused(program("train", "--data", text, "--out", tmp_path / "run", *tokenizer, *given), said)
    assert not (tmp_path / "run").exists()


def test_folders_of_the_other_kind_are_refused(program: Program, base: Path, trained: Path, tmp_path: Path) -> None:
    newest = trained / "checkpoints" / "step-000003"
    refused(program("train", "--model", newest, "--lora", "r=4"), "an adapter without its base model; merge it")
    refused(program("generate", base, "--adapter", base, *GREEDY), f"{base} holds a model and no adapter", command="generate")
    refused(program("generate", newest, "--adapter", newest, *GREEDY), "is an adapter itself; name", command="generate")
    refused(program("merge", newest, newest, tmp_path / "out"), "is an adapter, expected its base", command="merge")
    refused(program("merge", base, newest, base), "holds other files; name an empty or new folder", command="merge")
    refused(program("merge", base, newest, tmp_path / "out", "--dtype", "int8"), "float16 or bfloat16", command="merge")
    refused(program("merge", base, tmp_path / "nowhere", tmp_path / "out"), "nowhere is not a folder", command="merge")
    assert not (tmp_path / "out").exists()


@pytest.mark.filterwarnings("always")
def test_a_rank_above_what_a_layer_can_have_is_told_in_one_line(
    program: Program, base: Path, text: Path, tmp_path: Path
) -> None:
    told = "adapters of rank 17 are larger than useful: layers.0.self_attn.v_proj is 16 x 32, and no change of it has a rank"
    words = ("--model", base, "--lora", "r=17", "--batch-size", 2, "--device", "cpu")
    for command in (("plan",), ("train", "--data", text, "--steps", 1, "--out", tmp_path / "run")):
        status, _, err = program(*command, *words)
        assert status == 0 and err.count("\n") == err.count(told) == 1
    assert program("generate", tmp_path / "run", *GREEDY)[2] == ""


def test_the_displayed_speed_of_an_adapter_counts_what_a_step_computes(
    program: Program, base: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flops, begin = list[float](), PlainDisplay.begin

    def begun(self: PlainDisplay, ahead: Ahead) -> None:
        flops.append(ahead.flops_per_token)
        begin(self, ahead)

    monkeypatch.setattr(PlainDisplay, "begin", begun)
    words = ("train", "--data", text, "--model", base, "--steps", 1, "--batch-size", 2, "--device", "cpu", "--seq-len", 8)
    for name, more in (("whole", ()), ("lora", ("--lora", "r=4"))):
        assert program(*words, *more, "--out", tmp_path / name)[0] == 0
    assert flops == [LLAMA.flops_per_token(8), Tuning(LoRA(rank=4)).flops_per_token(LLAMA, 8)]
    assert 0.6 < flops[1] / flops[0] < 0.9


def test_a_model_that_writes_or_is_measured_keeps_matrices_as_stored(
    program: Program, base: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same weights in float32 give the same text and the same loss in twice the memory."""
    nbytes, opened = list[int](), Saved.open

    async def seen(self: Saved, engine: Engine) -> Model:
        model = await opened(self, engine)
        nbytes.append(engine.statistics().host_used_bytes)
        return model

    monkeypatch.setattr(Saved, "open", seen)

    async def widen() -> None:
        async with Engine("cpu") as engine:
            await (await Model.from_pretrained(engine, base)).save_pretrained(wide)

    wide = tmp_path / "wide"
    asyncio.run(widen())
    measured = ("--data", text, "--validation-tokens", 64, "--device", "cpu")
    for command, words in (("generate", (*GREEDY, "--device", "cpu")), ("evaluate", measured)):
        found = [program(command, folder, *words)[:2] for folder in (base, wide)]
        said = [re.sub("model .*|seconds .*", "", out) for _, out in found]
        assert found[0][0] == 0 and said[0] == said[1] and nbytes[-2] < 0.6 * nbytes[-1]


def test_a_plan_of_an_adapter_knows_what_is_frozen(program: Program, base: Path, tmp_path: Path) -> None:
    """A config.json is enough, as for every plan."""
    def planned(*words: Any) -> dict[str, Any]:
        usual = ("--model", base / "config.json", "--tokenizer", "bytes", "--device", "emulated", "--batch-size", 2, "--json")
        status, out, err = program("plan", *usual, *words)
        assert (status, err) == (0, "")
        return json.loads(out)

    whole, adapted = planned(), planned("--lora", "r=4,targets=q_proj+v_proj")
    count = sum(4 * (32 + (32 if layer.endswith("q_proj") else 16)) for layer in layers_of(LLAMA, "q_proj", "v_proj"))
    assert whole["trained"] == whole["parameters"] == LLAMA.parameter_count and whole["frozen_bytes"] == 0
    assert adapted["trained"] == count and adapted["parameters"] == LLAMA.parameter_count + count
    matrices = sum(prod(shape) for _, shape in shapes(LLAMA) if len(shape) == 2)
    assert adapted["checkpoint_bytes"] == 12 * count
    assert adapted["frozen_bytes"] == 4 * LLAMA.parameter_count - 2 * matrices, "config.json says that the file is in bfloat16"
    assert adapted["states_bytes"] == adapted["checkpoint_bytes"] + adapted["frozen_bytes"]
    assert adapted["host_bytes"] < 0.7 * whole["host_bytes"]
    assert adapted["updates"] < whole["updates"]
