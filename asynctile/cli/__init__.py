"""The program `asynctile`: `main` picks the command and turns a user's error into one line and exit status 2.

arguments.py reads the options and terminal.py writes all output. Each command is the module of its name, which `main` imports
only to run it: `--help` must import nothing heavy, and a test holds that.
"""

from __future__ import annotations

from asynctile.starting import EXIT_STATUS, ended_by_ctrl_c, is_program, leave_it_at_that

with ended_by_ctrl_c():
    import os
    import resource
    import sys
    import warnings
    from collections.abc import Sequence
    from importlib import import_module
    from typing import Any

    from asynctile import __version__
    from asynctile.cli.arguments import COMMANDS, Parser, build_parser
    from asynctile.cli.nearest import nearest
    from asynctile.cli.option import with_flags
    from asynctile.cli.terminal import STDOUT, complain, drop_output, one_line, open_streams, say
    from asynctile.errors import AsynctileError
    from asynctile.storage.input import shown
    from asynctile.threads import REFUSED, WAY_OUT

__all__ = ["main"]

#: Descriptors that a command may need at once: event loops, a spill file, folders held open, the kernel cache.
LEAST_FILES = 64
#: Address space that importing a command takes. `train` took 388 MiB (VmPeak with one BLAS thread; Python 3.11, NumPy 2.4,
#: SciPy 1.17, Numba 0.68).
LEAST_ADDRESS_SPACE = 400 << 20


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0, 2 for an error that the user can fix, 130 after a signal."""
    with ended_by_ctrl_c():
        open_streams()
        parser = build_parser(__version__)
        typed = join_negative_values(sys.argv[1:] if argv is None else argv)
        given = _read(parser, typed)
    if given is None:
        return 2
    command = given.pop("command")
    program = "asynctile" if command is None else f"asynctile {command}"

    def tell(sentence: str) -> None:
        complain(f"{program}: {with_flags(sentence, parser.flags_of(command), typed)}")

    try:
        if command is None:
            say(parser.format_help())
            return 0
        _check_files()
        _check_address_space()
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: tell(str(message))
            with ended_by_ctrl_c():
                module = import_module(f"asynctile.cli.{command}")
            status: int = module.run(given)
        say("")
        return status
    except BrokenPipeError:
        drop_output(sys.stdout)  # the reader of a pipe (`| head`) has left
        return 0
    except KeyboardInterrupt:
        leave_it_at_that()
        return EXIT_STATUS
    except (AsynctileError, ValueError, TypeError, OSError) as error:
        if isinstance(error, OSError) and error.filename == STDOUT:
            drop_output(sys.stdout)
        tell(one_line(error))
        return 2
    except MemoryError:
        tell("out of memory; raise the limits of this process (ulimit -v, ulimit -d)")
        return 2
    except RuntimeError as error:
        if str(error) != REFUSED:
            raise
        tell(f"the system refused to start a thread; {WAY_OUT}")
        return 2


def _read(parser: Parser, words: Sequence[str]) -> dict[str, Any] | None:
    """Return the parsed options. If they cannot be parsed, write one line about this to stderr and return None.

    argparse itself would list all commands, or would not name the command whose --help to read.
    """
    if words and not words[0].startswith("-") and words[0] not in COMMANDS:
        near = nearest(words[0], COMMANDS) or f"; expected one of {', '.join(COMMANDS)}"
        complain(f"asynctile: unknown command {shown(words[0])}{near} (see asynctile --help)")
        return None
    found, unknown = parser.parse_known_args(words)
    if not unknown:
        return vars(found)
    program = parser.prog if found.command is None else f"{parser.prog} {found.command}"
    near = nearest(unknown[0].partition("=")[0], parser.flags_of(found.command))
    complain(f"{program}: unknown arguments: {' '.join(unknown)}{near} (see {program} --help)")
    return None


def _check_files() -> None:
    """Raise OSError if this process may open too few files: a library would fail half way and not say which limit it hit."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < LEAST_FILES:
        raise OSError(f"this process may open only {most} files (ulimit -n) and needs at least {LEAST_FILES}; raise that limit")


def _check_address_space() -> None:
    """Raise OSError if the address space is too small for the imports: libraries would abort the process or retry forever."""
    if is_program():  # engines use one BLAS thread; the default of two per core reserves memory for nothing
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most == resource.RLIM_INFINITY:
        return
    if most < LEAST_ADDRESS_SPACE:
        raise OSError(
            f"this process may use only {most >> 20} MiB of address space (ulimit -v) and needs at least "
            f"{LEAST_ADDRESS_SPACE >> 20} MiB to load its libraries; raise that limit"
        )
    import_module("asynctile.storage.limits").spare_address_space()


def join_negative_values(argv: Sequence[str]) -> list[str]:
    """Rewrite `--steps -3` as `--steps=-3`: argparse would take `-3MiB` for an unknown option and not name the value."""
    joined: list[str] = []
    for word in argv:
        negative = word[:1] == "-" and (word[1:2].isdigit() or word[1:2] == "." or word[1:] in ("inf", "nan"))
        if negative and joined and joined[-1].startswith("--") and "=" not in joined[-1]:
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined
