"""The command line: commands, options and their help.

Options of `train` that were not typed are absent from the result, so that a resumed run can tell them from those that
were. Their defaults, and which check of values.py each has, stand in options.py.
"""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from asynctile.cli import values
from asynctile.cli.options import CHECKS, Options
from asynctile.cli.terminal import complain

__all__ = ["build_parser"]


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line; argparse would print its usage before."""

    def error(self, message: str) -> NoReturn:
        complain(f"{self.prog}: {message} (see {self.prog} --help)")
        self.exit(2)


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole program; its result has `command` and that command's options."""
    parser = Parser(prog="asynctile", allow_abbrev=False,
                    description="Train a GPT-2 that does not fit on the device, tile by tile.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, summary: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=summary, description=summary, allow_abbrev=False,
                                   argument_default=argparse.SUPPRESS)

    _add_training(command("train", "Train a GPT-2 on text, and leave a folder with checkpoints and metrics."))
    _add_generate(command("generate", "Continue a prompt with a trained model."))
    _add_training(command("plan", "Say what a training step needs and what bounds it, without doing it."))
    _add_stress(command("stress", "Try to make the memory tiers lose a byte, leak or hang, and damaged files do harm."))
    command("info", "Show devices, memory tiers and the libraries in use.")
    return parser


def _add_training(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is trained on what")
    group.add_argument("--data", metavar="PATH", type=CHECKS["data"],
                       help="a text file or a folder of them (default: the source of Python's standard library)")
    group.add_argument("--model", metavar="NAME|DIR|FILE", type=CHECKS["model"],
                       help="gpt2, gpt2-medium, gpt2-large or gpt2-xl for a new model of that shape, a config.json for "
                            "another shape, or a model folder to start from its weights (default: a small new model)")
    group.add_argument("--tokenizer", metavar="bytes|FILE|bpe:N", type=CHECKS["tokenizer"],
                       help="bytes, a tokenizer.json, or a byte-pair encoding of N tokens trained on the data "
                            "(default: that of the model folder, else bytes)")
    _add_placement(parser).add_argument("--update", metavar="PLACE", type=CHECKS["update"],
        help="where AdamW runs: on the device, on the host (in RAM, so that its moments never move), or auto, which measures "
             f"what is faster; on cpu it is the same (default: {Options.update})")
    _add_arithmetic(parser.add_argument_group("how it is trained"))
    _add_output(parser.add_argument_group("what is kept"))


def _add_placement(parser: argparse.ArgumentParser) -> Any:
    group = parser.add_argument_group("where the bytes are (sizes such as 512MiB, or none; this changes no result)")
    group.add_argument("--device", metavar="NAME", type=CHECKS["device"],
                       help=f"auto, cpu, emulated or cuda:N (default: {Options.device})")
    group.add_argument("--device-memory", metavar="SIZE", type=CHECKS["device_memory"],
                       help="the most bytes to use on the device (default: what is there)")
    group.add_argument("--host-memory", metavar="SIZE", type=CHECKS["host_memory"],
                       help="the most RAM that tiles may take; on cpu, RAM is the device (default: about four fifths of what "
                            "the machine, its control groups and ulimit leave)")
    group.add_argument("--spill", metavar="DIR", type=CHECKS["spill"],
                       help="a folder that exists, on a fast disk, for what --host-memory cannot hold; one run at a time uses "
                            "it and leaves nothing there; named again when a run goes on")
    group.add_argument("--spill-limit", metavar="SIZE", type=CHECKS["spill_limit"],
                       help="the most bytes to use in the spill folder, set aside at once (default: what `asynctile plan` "
                            "says is needed)")
    group.add_argument("--link-rate", metavar="SIZE", type=CHECKS["link_rate"],
                       help="bytes a second each way between RAM and the emulated device (default: as fast as it goes)")
    group.add_argument("--prefetch", metavar="N", type=CHECKS["prefetch"],
                       help="how far ahead tiles are fetched, in units of 4 tiles; 0 shows the run without overlap "
                            f"(default: {Options.prefetch})")
    return group


def _add_precision(group: Any) -> None:
    group.add_argument("--precision", metavar="NAME", type=CHECKS["precision"],
                       help="fp32; on a GPU also tf32, or bf16 with float32 master weights and moments "
                            f"(default: {Options.precision})")


def _add_arithmetic(group: Any) -> None:
    _add_precision(group)
    group.add_argument("--tile", metavar="N", type=CHECKS["tile"],
                       help="rows and columns of a tile; part of the result's last bits (default: chosen for you)")
    group.add_argument("--recompute", action=argparse.BooleanOptionalAction,
                       help="compute all activations again in backward, or keep them all; no result depends on it (default: "
                            "keep those of as many layers as fit under the caps, or as the link carries beside compute)")
    group.add_argument("--steps", metavar="N", type=CHECKS["steps"], help=f"steps in all (default: {Options.steps})")
    group.add_argument("--batch-size", metavar="B", type=CHECKS["batch_size"],
                       help=f"sequences a step (default: {Options.batch_size})")
    group.add_argument("--micro-batches", metavar="M", type=CHECKS["micro_batches"],
                       help="parts that a batch is cut into, to need less memory at once "
                            f"(default: {Options.micro_batches})")
    group.add_argument("--seq-len", metavar="T", type=CHECKS["seq_len"],
                       help="tokens a sequence (default: as many as the model takes)")
    group.add_argument("--lr", metavar="RATE", type=CHECKS["lr"],
                       help=f"the highest learning rate; it ends at a tenth of it (default: {Options.lr})")
    group.add_argument("--warmup", metavar="N", type=CHECKS["warmup"],
                       help="steps until the learning rate is at its highest (default: a tenth of all, at most 100)")
    group.add_argument("--weight-decay", metavar="RATE", type=CHECKS["weight_decay"],
                       help=f"AdamW's decay of weights (default: {Options.weight_decay})")
    group.add_argument("--clip-norm", metavar="NORM", type=CHECKS["clip_norm"],
                       help="limit of the gradient's norm; all gradients are kept until it is known (default: none)")
    group.add_argument("--seed", metavar="N", type=CHECKS["seed"],
                       help=f"of the new weights and of the order of the data (default: {Options.seed})")


def _add_output(group: Any) -> None:
    group.add_argument("--out", metavar="DIR", type=CHECKS["out"],
                       help="the folder of the run (default: a new one in runs/, named after the time)")
    group.add_argument("--save-every", metavar="N", type=CHECKS["save_every"],
                       help=f"steps between checkpoints (default: {Options.save_every})")
    group.add_argument("--keep", metavar="N", type=CHECKS["keep"],
                       help=f"how many of the newest checkpoints stay (default: {Options.keep})")
    group.add_argument("--resume", action="store_true",
                       help="go on with the run in --out from its newest checkpoint; its options are used again, and "
                            "memory, prefetch, precision, steps and what is kept may be changed; none unsets a size or --spill")
    group.add_argument("--trace", metavar="FILE", type=CHECKS["trace"], help="write what ran when, for chrome://tracing")


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
    parser.add_argument("--tokenizer", metavar="bytes|FILE", type=values.name, default=None,
                        help="for a model folder that has none of its own")
    _add_placement(parser)
    _add_precision(parser)


def _add_stress(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", metavar="X", type=values.positive, help="how long to go on (default: 1)")
    parser.add_argument("--rounds", metavar="N", type=values.count,
                        help="rounds of each scenario, in place of minutes or to end earlier")
    parser.add_argument("--cancellations", metavar="N", type=values.count,
                        help="with --scenario cancel: go on until so many calls were cancelled, timed out or left alone")
    parser.add_argument("--seed", metavar="N", type=values.natural,
                        help="of everything random; a failure names the seed that draws its round again (default: any)")
    parser.add_argument("--scenario", metavar="NAME", type=values.name, action="append",
                        help="some of random, thrash, train, faults, cancel, kill and inputs: one, several with commas, or the "
                             "option again (default: all)")
    parser.add_argument("--spill", metavar="DIR", type=values.name,
                        help="a folder on the disk to be tried; a folder in it is made and removed (default: TMPDIR or here)")
    parser.add_argument("--report", metavar="FILE.json", type=values.name, help="write what was counted and found")


def _prompt(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("an empty prompt has nothing to continue; write at least one character")
    return text
