"""The program `asynctile`: picks the command and turns the user's errors into one line and exit status 2.

Covers `main` only. Options are read in arguments.py; what reaches the terminal passes terminal.py; each command is the module
of its name.
"""

from __future__ import annotations

from asynctile.starting import EXIT_STATUS, ended_by_ctrl_c

with ended_by_ctrl_c():
    import resource
    import sys
    import warnings
    from collections.abc import Sequence
    from importlib import import_module

    from asynctile.cli.arguments import build_parser
    from asynctile.cli.terminal import STDOUT, complain, drop_output, one_line, open_streams, say
    from asynctile.errors import AsynctileError

__all__ = ["main"]

#: Descriptors that a command may need at once: event loops, a spill file, folders held open, the kernels' cache.
LEAST_FILES = 64


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status: 0, 2 for what the user can mend, 130 when stopped by a signal."""
    with ended_by_ctrl_c():
        open_streams()
        parser = build_parser()
        found, unknown = parser.parse_known_args(join_negative_values(sys.argv[1:] if argv is None else argv))
    given = vars(found)
    command = given.pop("command")
    if unknown:  # argparse itself would name the program alone, whose help says nothing of a command's options
        complain(f"asynctile {command}: unrecognized arguments: {' '.join(unknown)} (see asynctile {command} --help)")
        return 2
    try:
        _check_files()
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: complain(f"asynctile {command}: {message}")
            with ended_by_ctrl_c():  # imported when needed: `--help` does not wait for all modules
                module = import_module(f"asynctile.cli.{command}")
            status: int = module.run(given)
        say("")
        return status
    except BrokenPipeError:
        drop_output(sys.stdout)  # the reader of a pipe (`| head`) has left
        return 0
    except KeyboardInterrupt:
        return EXIT_STATUS
    except (AsynctileError, ValueError, TypeError, OSError) as error:
        if isinstance(error, OSError) and error.filename == STDOUT:
            drop_output(sys.stdout)
        complain(f"asynctile {command}: {one_line(error)}")
        return 2


def _check_files() -> None:
    """OSError if this process may open too few files: with fewer a library fails half way, and none says of what."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < LEAST_FILES:
        raise OSError(f"this process may open {most} files (ulimit -n), expected at least {LEAST_FILES}; raise that limit")


def join_negative_values(argv: Sequence[str]) -> list[str]:
    """Write `--steps -3` as `--steps=-3`: argparse would take `-3MiB` for an unknown option and not name the value."""
    joined: list[str] = []
    for word in argv:
        negative = word[:1] == "-" and (word[1:2].isdigit() or word[1:2] == "." or word[1:] in ("inf", "nan"))
        if negative and joined and joined[-1].startswith("--") and "=" not in joined[-1]:
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined
