"""The command line: commands, their options and their help.

`train` options that were not typed are absent from the result, so that a resumed run knows which ones were. Their defaults,
checks and help are in options.py. This module imports nothing heavy, because `--help` needs it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import fields
from itertools import takewhile
from typing import Any, NoReturn

from asynctile.cli import values
from asynctile.cli.option import Option, flag, options_of
from asynctile.cli.options import PLACEMENT, Options
from asynctile.cli.terminal import complain

__all__ = ["COMMANDS", "Parser", "build_parser"]

COMMANDS = {
    "train": "Train a GPT-2, LLaMA, Mistral or Qwen on text; write checkpoints and metrics to a folder.",
    "evaluate": "Measure a trained model on a text: loss, perplexity, bits per byte.",
    "generate": "Continue a prompt with a trained model, or talk with it.",
    "merge": "Add an adapter to the weights of its base, and write one model.",
    "plan": "Show what a training step needs and what limits its speed, without running it.",
    "stress": "Stress-test the memory tiers (lost bytes, leaks, hangs) and every command on damaged files.",
    "info": "Show devices, memory tiers and library versions.",
}
_TABLE = options_of(Options)
_DEFAULTS = {item.name: item.default for item in fields(Options)}
_PLANNED = frozenset(name for name, entry in _TABLE.items() if entry.plans)
#: Options that name a text, and what to do instead of typing one twice. Of any other option the last one counts, as scripts
#: expect.
_TEXTS = {
    "data": "put several texts into one folder (mixtures are not supported yet)",
    "validation_data": "put several texts into one folder",
    "prompt": "give one prompt",
    "message": "give one message, or talk with --chat",
    "system": "give one system message",
}


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that reports an error in one line, without printing its usage first."""

    #: the commands of the whole program, by name
    commands: Mapping[str, argparse.ArgumentParser] = {}

    def flags_of(self, command: str | None) -> list[str]:
        """Return all options of `command`; of the program itself if it is None."""
        parser = self if command is None else self.commands[command]
        return list(parser._option_string_actions)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, but refuse an option typed twice that names a text: argparse would silently drop the first.
        """
        typed: set[str] = set()
        for word in takewhile(lambda word: word != "--", args):
            action = self._option_string_actions.get(word.partition("=")[0])
            if action is not None and action.dest in typed:
                self.error(f"argument {action.option_strings[0]}: given twice; "
                           f"{_TEXTS[action.dest]}")
            if action is not None and action.dest in _TEXTS:
                typed.add(action.dest)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        complain(f"{self.prog}: {message} (see {self.prog} --help)")
        self.exit(2)


def build_parser(version: str) -> Parser:
    """Return the parser of the whole program. Its result has `command`, None if none was typed, and that command's options."""
    parser = Parser(prog="asynctile", allow_abbrev=False, usage="asynctile COMMAND [OPTION ...]",
                    description="Train a language model larger than the memory of its device, tile by tile.",
                    epilog="Run `asynctile COMMAND --help` for the options of a command. `asynctile train` works without any.")
    parser.add_argument("--version", action="version", version=f"asynctile {version}", help="show the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", prog="asynctile")

    def command(name: str, **more: Any) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=COMMANDS[name], description=COMMANDS[name], allow_abbrev=False,
                                   argument_default=argparse.SUPPRESS, **more)

    _add_training(command("train", usage="%(prog)s [OPTION ...]"), _TABLE)
    _add_evaluate(command("evaluate"))
    _add_generate(command("generate"))
    _add_merge(command("merge"))
    plan = command("plan", usage="%(prog)s [OPTION ...]",
                   epilog="All other options of `asynctile train` are accepted too; they do not change the plan.")
    _add_training(plan, _PLANNED)
    plan.add_argument("--gflops", metavar="RATE", type=values.positive,
        help="speed of matrix products for the time estimates, in GFLOP/s of all cores or of the GPU (default: measured on "
             "this machine's cores, assumed for a GPU)")
    plan.add_argument("--gbits", metavar="RATE", type=values.positive,
        help="with --nodes: speed of the network of each node for the time estimates, in Gbit/s each way (default: 25)")
    plan.add_argument("--machine", metavar="NAME|FILE", type=values.name,
        help="plan for another machine: a100-40gb, a100-80gb, a100-node, h100, h200, laptop, rtx-4090, rtx-5090, or a TOML "
             "file that describes one (default: this machine)")
    plan.add_argument("--search", metavar="TIME", type=values.duration,
        help="try other tiles, updates, recomputation, micro-batches and, on several GPUs, replicas for this time (30s, 2m); "
             "name the fastest settings and what each saves, then what twice and half of the typed caps change "
             "(default: none)")
    plan.add_argument("--json", action="store_true", help="print the plan as JSON for other programs, times in seconds and "
                      "memory in bytes")
    _add_stress(command("stress"))
    info = command("info")
    info.add_argument("--measure", action="store_true",
        help="measure this machine's cores, RAM and disk, and print a file for `asynctile plan --machine`")
    info.add_argument("--device", metavar="NAME", type=values.name,
        help="with --measure: the GPUs to measure in place of the cores, such as cuda:0 or cuda:0-3 (default: cpu)")
    info.add_argument("--precision", metavar="NAME", type=values.name,
        help="with --measure: fp32, tf32 or bf16, in which GPUs compute (default: fp32)")
    parser.commands = commands.choices
    return parser


def add_options(parser: argparse.ArgumentParser, names: Iterable[str], shown: Iterable[str]) -> dict[str, Any]:
    """Add options of the table under their headings, and return the argument groups by heading.

    All `names` can be typed; the help lists only those in `shown`.
    """
    groups: dict[str, Any] = {}
    visible = frozenset(shown)
    for name in names:
        entry = _TABLE[name]
        if entry.group not in groups:
            groups[entry.group] = parser.add_argument_group(entry.group)
        text = entry.help.format(default=_DEFAULTS[name]) if name in visible else argparse.SUPPRESS
        groups[entry.group].add_argument(flag(name), help=text, **_action(entry))
    return groups


def _action(entry: Option) -> dict[str, Any]:
    if entry.check is None:
        return {"action": argparse.BooleanOptionalAction}
    return {"metavar": entry.metavar, "type": entry.check, "action": "append" if entry.repeatable else "store"}


def _add_training(parser: argparse.ArgumentParser, shown: Iterable[str]) -> None:
    parser.add_argument("--config", metavar="FILE", type=values.name,
        help="read options from a TOML file with lines such as lr = 0.001; options typed here, and those that a resumed run "
             "remembers, override the file")
    groups = add_options(parser, _TABLE, shown)
    groups[_TABLE["out"].group].add_argument("--resume", action="store_true",
        help="continue the run in --out from its newest checkpoint with the same options; device, memory, precision, length, "
             "learning rate, validation and output options may be changed; the value none removes a size or --spill")


def _add_evaluate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", type=values.name,
                        help="folder of a run (its newest checkpoint is used), of a checkpoint, or of a model")
    parser.add_argument("--data", metavar="PATH", type=values.name, default=None,
                        help="text to evaluate on, in any form that train takes (default: the text that the run held out)")
    parser.add_argument("--text-field", metavar="NAME", type=values.name, default=_DEFAULTS["text_field"],
                        help="field of each .jsonl line that holds the text (default: %(default)s)")
    _add_chat_template(parser)
    parser.add_argument("--validation-tokens", metavar="N", type=values.count, default=None,
                        help="tokens to evaluate on, spread over the text (default: all of --data, or as many as the run "
                             "validates on)")
    parser.add_argument("--batch-size", metavar="B", type=values.count, default=None,
                        help=f"sequences per batch (default: the run's, or {_DEFAULTS['batch_size']})")
    parser.add_argument("--seq-len", metavar="T", type=values.count, default=None,
                        help="tokens per sequence (default: the run's, or the most that the model takes, but at most 2048)")
    parser.add_argument("--tokenizer", metavar="bytes|FILE|DIR", type=values.name, default=None,
                        help="tokenizer to use for a model folder that has none")
    _add_adapter(parser)
    add_options(parser, PLACEMENT, PLACEMENT)


def _add_generate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", type=values.name,
                        help="folder of a run (its newest checkpoint is used) or of a model")
    parser.add_argument("--prompt", metavar="TEXT", default=None, type=_prompt, help="text to continue (default: none)")
    parser.add_argument("--chat", action="store_true", default=False,
                        help="talk with the model: each line of input is a message, and the model answers it by its chat "
                             "template; the end of input (Ctrl-D) ends the conversation (needs asynctile[chat])")
    parser.add_argument("--message", metavar="TEXT", default=None, type=_prompt,
                        help="a single message to answer, in place of a conversation (default: none)")
    parser.add_argument("--system", metavar="TEXT", default=None, type=_prompt,
                        help="a system message to begin the conversation with (default: none)")
    _add_chat_template(parser)
    parser.add_argument("--max-new-tokens", metavar="N", type=values.count, default=200,
                        help="most tokens to generate (default: %(default)s)")
    parser.add_argument("--temperature", metavar="X", type=values.fraction, default=0.8,
                        help="randomness of the choice of tokens; 0 always takes the likeliest one (default: %(default)s)")
    parser.add_argument("--top-k", metavar="N", type=values.count, default=50,
                        help="sample from the N likeliest tokens (default: %(default)s)")
    parser.add_argument("--top-p", metavar="X", type=values.positive, default=None,
                        help="sample from the smallest set of likeliest tokens whose probabilities add up to X "
                             "(default: all tokens)")
    parser.add_argument("--min-p", metavar="X", type=values.fraction, default=None,
                        help="sample from tokens with at least X times the likeliest one's probability (default: all tokens)")
    parser.add_argument("--repetition-penalty", metavar="X", type=values.positive, default=None,
                        help="above 1, tokens already in the text become less likely; below 1, more likely (default: off)")
    parser.add_argument("--stop", metavar="TEXT", action="append", default=[],
                        help="stop before the model writes this text; may be repeated (default: none)")
    parser.add_argument("--seed", metavar="N", type=values.natural, default=1,
                        help="seed of the choice of tokens (default: %(default)s)")
    parser.add_argument("--tokenizer", metavar="bytes|FILE|DIR", type=values.name, default=None,
                        help="tokenizer to use for a model folder that has none")
    _add_adapter(parser)
    add_options(parser, PLACEMENT, PLACEMENT)


def _add_adapter(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--adapter", metavar="DIR", type=values.name, default=None,
                        help="folder of an adapter of the model, in PEFT's format, or of a run with --lora (default: none)")


def _add_merge(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("base", metavar="BASE", type=values.name,
                        help="folder of the model that the adapter was trained on, or of a run (its newest checkpoint is used)")
    parser.add_argument("adapter", metavar="ADAPTER", type=values.name,
                        help="folder of the adapter, in PEFT's format, or of a run with --lora (its newest checkpoint is used)")
    parser.add_argument("out", metavar="OUT", type=values.name, help="folder to write the model to; new or empty")
    parser.add_argument("--dtype", metavar="NAME", type=values.one_of("float32", "float16", "bfloat16"), default=None,
                        help="dtype of the weights: float32, float16 or bfloat16 (default: that of the base)")


def _add_stress(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", metavar="X", type=values.positive, help="minutes to run (default: 1, without --rounds)")
    parser.add_argument("--rounds", metavar="N", type=values.count,
                        help="rounds of each scenario; with --minutes, the run ends with whichever comes first")
    parser.add_argument("--cancellations", metavar="N", type=values.count,
                        help="with --scenario cancel: run until N calls were cancelled, timed out or abandoned")
    parser.add_argument("--seed", metavar="N", type=values.natural,
                        help="seed of all random choices; a failure prints the seed that repeats its round (default: random)")
    parser.add_argument("--scenario", metavar="NAME", type=values.name, action="append",
                         help="scenarios to run, separated by commas: random, thrash, train, faults, truncate, crawl, cancel, "
                              "threads, kill, saves, signals, nodes, inputs; may be repeated (default: all)")
    parser.add_argument("--spill", metavar="DIR", type=values.name,
                        help="folder on the disk to test; a subfolder is created and removed (default: TMPDIR, else the "
                             "current folder)")
    parser.add_argument("--report", metavar="FILE.json", type=values.name, help="write all counters and failures to this file")


def _add_chat_template(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--chat-template", metavar="FILE", type=values.name, default=None,
                        help="Jinja template of chats (default: that of the model's folder)")


def _prompt(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("the text is empty; give at least one character")
    return text
