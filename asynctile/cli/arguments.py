"""The command line: commands, options and their help.

Options of `train` that were not typed are absent from the result, so that a resumed run can tell them from those that
were. Which there are, with their defaults, checks and help, is options.py. Nothing heavy is imported here: `--help` is this.
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
    "train": "Train a GPT-2 on text, and leave a folder with checkpoints and metrics.",
    "evaluate": "Say how well a trained model does on a text: loss, perplexity, bits per byte.",
    "generate": "Continue a prompt with a trained model.",
    "plan": "Say what a training step needs and what bounds it, without doing it.",
    "stress": "Try to make the memory tiers lose a byte, leak or hang, and damaged files do harm.",
    "info": "Show devices, memory tiers and the libraries in use.",
}
_TABLE = options_of(Options)
_DEFAULTS = {item.name: item.default for item in fields(Options)}
_PLANNED = frozenset(name for name, entry in _TABLE.items() if entry.plans)
#: Options that name a text, and what to do who has several. Of any other option the last one counts, as scripts expect.
_TEXTS = {
    "data": "put several texts into one folder (mixtures are not there yet)",
    "validation_data": "put several texts into one folder",
    "prompt": "write one prompt",
}


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line; argparse would print its usage before."""

    #: by name, those of the whole program
    commands: Mapping[str, argparse.ArgumentParser] = {}

    def flags_of(self, command: str | None) -> list[str]:
        """Every option that a command takes; None: of the program alone."""
        parser = self if command is None else self.commands[command]
        return list(parser._option_string_actions)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse, but an option that names a text is typed once: the first of two would be left out without a word."""
        typed: set[str] = set()
        for word in takewhile(lambda word: word != "--", args):
            action = self._option_string_actions.get(word.partition("=")[0])
            if action is not None and action.dest in typed:
                self.error(f"argument {action.option_strings[0]}: it is typed twice, and the first would not count; "
                           f"{_TEXTS[action.dest]}")
            if action is not None and action.dest in _TEXTS:
                typed.add(action.dest)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        complain(f"{self.prog}: {message} (see {self.prog} --help)")
        self.exit(2)


def build_parser(version: str) -> Parser:
    """The parser of the whole program; its result has `command`, None if there was none, and that command's options."""
    parser = Parser(prog="asynctile", allow_abbrev=False, usage="asynctile COMMAND [OPTION ...]",
                    description="Train a GPT-2 that does not fit on the device, tile by tile.",
                    epilog="Each command has a --help of its own. `asynctile train` needs no option.")
    parser.add_argument("--version", action="version", version=f"asynctile {version}", help="say which version this is")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", prog="asynctile")

    def command(name: str, **more: Any) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=COMMANDS[name], description=COMMANDS[name], allow_abbrev=False,
                                   argument_default=argparse.SUPPRESS, **more)

    _add_training(command("train", usage="%(prog)s [OPTION ...]"), _TABLE)
    _add_evaluate(command("evaluate"))
    _add_generate(command("generate"))
    plan = command("plan", usage="%(prog)s [OPTION ...]",
                   epilog="The other options of `asynctile train` may stand here too; they change no plan.")
    _add_training(plan, _PLANNED)
    plan.add_argument("--gflops", metavar="RATE", type=values.positive,
        help="GFLOP/s of products that times are estimated by, of all cores or of the GPU (default: as measured on this "
             "machine's cores, and assumed of a GPU)")
    _add_stress(command("stress"))
    command("info")
    parser.commands = commands.choices
    return parser


def add_options(parser: argparse.ArgumentParser, names: Iterable[str], shown: Iterable[str]) -> dict[str, Any]:
    """Add options of the table, under their headings; the help has those that are `shown`. Returns the groups by heading."""
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
        help="options from a TOML file, such as lr = 0.001; what is typed here counts before it, and what a run that goes on "
             "remembers")
    groups = add_options(parser, _TABLE, shown)
    groups[_TABLE["out"].group].add_argument("--resume", action="store_true",
        help="go on with the run in --out from its newest checkpoint; its options are used again, and memory, prefetch, "
             "precision, steps, learning rate and what is kept may be changed; none unsets a size or --spill")


def _add_evaluate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", type=values.name,
                        help="the folder of a run, whose newest checkpoint counts, of a checkpoint, or of a model")
    parser.add_argument("--data", metavar="PATH", type=values.name, default=None,
                        help="text, as for train (default: the part that the run of the model has held out)")
    parser.add_argument("--text-field", metavar="NAME", type=values.name, default=_DEFAULTS["text_field"],
                        help="which field of each line of a .jsonl is its text (default: %(default)s)")
    parser.add_argument("--validation-tokens", metavar="N", type=values.count, default=None,
                        help="on how many tokens, spread over the text (default: all of --data, or as many as the run "
                             "validates on)")
    parser.add_argument("--batch-size", metavar="B", type=values.count, default=None,
                        help=f"sequences at once (default: the run's, or {_DEFAULTS['batch_size']})")
    parser.add_argument("--seq-len", metavar="T", type=values.count, default=None,
                        help="tokens a sequence (default: the run's, or as many as the model takes)")
    parser.add_argument("--tokenizer", metavar="bytes|FILE|DIR", type=values.name, default=None,
                        help="for a model folder that has none of its own")
    add_options(parser, PLACEMENT, PLACEMENT)


def _add_generate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", type=values.name, help="the folder of a run, or of a model")
    parser.add_argument("--prompt", metavar="TEXT", required=True, type=_prompt, help="the text to continue")
    parser.add_argument("--max-new-tokens", metavar="N", type=values.count, default=200,
                        help="how many tokens to add (default: %(default)s)")
    parser.add_argument("--temperature", metavar="X", type=values.fraction, default=0.8,
                        help="0 takes the likeliest token each time, higher is wilder (default: %(default)s)")
    parser.add_argument("--top-k", metavar="N", type=values.count, default=50,
                        help="choose among the N likeliest tokens (default: %(default)s)")
    parser.add_argument("--top-p", metavar="X", type=values.positive, default=None,
                        help="choose among the fewest, likeliest tokens that have this share of the probability together "
                             "(default: all)")
    parser.add_argument("--min-p", metavar="X", type=values.fraction, default=None,
                        help="choose among tokens with at least this share of the likeliest one's probability (default: all)")
    parser.add_argument("--repetition-penalty", metavar="X", type=values.positive, default=None,
                        help="above 1 makes tokens that the text has less likely, below 1 more (default: neither)")
    parser.add_argument("--stop", metavar="TEXT", action="append", default=[],
                        help="end before this text; the option again for several (default: none)")
    parser.add_argument("--seed", metavar="N", type=values.natural, default=1,
                        help="of the choice of tokens (default: %(default)s)")
    parser.add_argument("--tokenizer", metavar="bytes|FILE|DIR", type=values.name, default=None,
                        help="for a model folder that has none of its own")
    add_options(parser, PLACEMENT, PLACEMENT)


def _add_stress(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", metavar="X", type=values.positive, help="how long to go on (default: 1)")
    parser.add_argument("--rounds", metavar="N", type=values.count,
                        help="rounds of each scenario, in place of minutes or to end earlier")
    parser.add_argument("--cancellations", metavar="N", type=values.count,
                        help="with --scenario cancel: go on until so many calls were cancelled, timed out or left alone")
    parser.add_argument("--seed", metavar="N", type=values.natural,
                        help="of everything random; a failure names the seed that draws its round again (default: any)")
    parser.add_argument("--scenario", metavar="NAME", type=values.name, action="append",
                         help="some of random, thrash, train, faults, truncate, crawl, cancel, threads, kill, saves, signals "
                              "and inputs: one, several with commas, or the option again (default: all)")
    parser.add_argument("--spill", metavar="DIR", type=values.name,
                        help="a folder on the disk to be tried; a folder in it is made and removed (default: TMPDIR or here)")
    parser.add_argument("--report", metavar="FILE.json", type=values.name, help="write what was counted and found")


def _prompt(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("an empty prompt has nothing to continue; write at least one character")
    return text
