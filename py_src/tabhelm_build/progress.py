"""What the user sees while something takes its time, and the one kind of error that he is meant to see.

Progress goes to stderr: stdout belongs to results (``--json``) and to pytest.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

STILL_EVERY = 10.0
"""Seconds between two signs of life of a long step."""


class BuildError(Exception):
    """Something that the user can mend. The message is one line: what failed, and what to do."""


def say(text: str) -> None:
    """One line of progress."""
    print(f"tabhelm: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def step(text: str) -> Iterator[None]:
    """Announce a step, give signs of life while it runs, and say how long it took if that was long."""
    say(f"{text} …")
    started = time.monotonic()
    ended = threading.Event()

    def still() -> None:
        while not ended.wait(STILL_EVERY):
            say(f"  still {text} ({time.monotonic() - started:.0f} s)")

    watcher = threading.Thread(target=still, name="progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
    took = time.monotonic() - started
    if took >= 2:
        say(f"  done in {took:.1f} s")


def run(
    command: Sequence[str | Path], *, cwd: Path | None = None, env: Mapping[str, str] | None = None, fails: str
) -> str:
    """Run a command quietly and return its stdout.

    Raises:
        BuildError: it failed. ``fails`` says what that means and what to do; the command's own last words follow.
    """
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except OSError as error:
        raise BuildError(f"{fails} ({words[0]}: {error.strerror})") from None
    if done.returncode:
        raise BuildError(f"{fails} ({reason(done.stderr) or reason(done.stdout) or f'exit code {done.returncode}'})")
    return done.stdout


def reason(output: str) -> str:
    """The most telling line of a failed command's output: the first that speaks of an error, else the last."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower() and "debug log" not in line.lower()]
    text = (telling or lines[-1:] or [""])[0]
    return text if len(text) <= 300 else f"{text[:299]}…"
