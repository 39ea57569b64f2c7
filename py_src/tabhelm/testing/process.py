"""One Chromium process with its own profile and its own debugging port, and what the kernel knows of its children."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from .errors import BrowserGone, ChaosError

CANDIDATES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")

# Nothing here may disable throttling, freezing or the back/forward cache: those are the faults that tests need.
FLAGS = (
    "--no-first-run",
    "--no-default-browser-check",
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-extensions-with-background-pages",
    "--disable-component-update",
    "--disable-breakpad",
    "--disable-default-apps",
    "--disable-dev-shm-usage",  # containers often have a /dev/shm of 64 MB
    "--disable-extensions",
    "--disable-gpu",
    "--disable-sync",
    "--mute-audio",
    "--password-store=basic",
    "--use-mock-keychain",
    "--renderer-process-limit=100",  # one renderer for each tab, however little memory the machine has
    # Interface parts that would only cost start time.
    "--disable-features=WebUIOmniboxPopup,WebUIOmniboxAimPopup,WebUIOmniboxFullPopup,OptimizationHints,"
    "MediaRouter,Translate,GlobalMediaControls",
)

# Its stdin ends when our process does, however that ends: then nobody else is left to kill the browser.
UNDERTAKER = 'read -r _; kill -s KILL -- "-$1"; sleep 1; rm -rf -- "$2"'


def find_chromium() -> str:
    """The Chromium to use: the environment variable ``TABHELM_CHROMIUM``, else the first known name on the path.

    Raises:
        BrowserGone: there is none.
    """
    named = os.environ.get("TABHELM_CHROMIUM")
    if named:
        return named
    for name in CANDIDATES:
        path = shutil.which(name)
        if path:
            return path
    raise BrowserGone(f"no Chromium found (looked for {', '.join(CANDIDATES)}): install one or set TABHELM_CHROMIUM")


class ChromiumProcess:
    """A running Chromium. ``end()`` kills its whole process group and deletes its profile, unless that was given.

    Both happen as well when the program that started it ends without ``end()``, be it by SIGKILL.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], profile: Path, log: IO[bytes], executable: str, *, keep: bool
    ) -> None:
        self._process = process
        self.profile = profile
        """Folder of the profile."""
        self._keep = keep
        self._patience = 5.0
        """Seconds that its end may take after its connection broke."""
        self._log = log
        self.executable = executable
        self.ws_url = ""
        """Address of the browser's DevTools WebSocket, known after ``start()``."""
        self._undertaker = subprocess.Popen(
            ["/bin/sh", "-c", UNDERTAKER, "undertaker", str(process.pid), "" if keep else str(profile)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @classmethod
    async def start(
        cls,
        executable: str | None = None,
        extra_args: Sequence[str] = (),
        *,
        headless: bool = True,
        profile: Path | None = None,
        timeout: float = 60.0,
    ) -> ChromiumProcess:
        """Start Chromium and wait until it can be joined. A given ``profile`` is a folder to use and to keep.

        Raises:
            BrowserGone: it cannot be started, ended at once, or opened no debugging port within ``timeout`` seconds.
        """
        executable = executable or find_chromium()
        keep = profile is not None
        profile = profile or Path(tempfile.mkdtemp(prefix="tabhelm-chromium-"))
        (profile / "DevToolsActivePort").unlink(missing_ok=True)  # the address of a killed predecessor
        log = open(profile / "stderr.log", "w+b")
        command = [
            executable,
            *(["--headless=new"] if headless else []),
            *FLAGS,
            "--remote-debugging-port=0",
            f"--user-data-dir={profile}",
            *extra_args,
            "about:blank",
        ]
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True
            )
        except OSError as error:
            log.close()
            if not keep:
                shutil.rmtree(profile, ignore_errors=True)
            raise BrowserGone(f"cannot start {executable!r}: {error}; set TABHELM_CHROMIUM to a Chromium") from error
        self = cls(process, profile, log, executable, keep=keep)
        try:
            self.ws_url = await self._read_address(timeout)
        except BaseException:
            self.end()
            raise
        return self

    async def _read_address(self, timeout: float) -> str:
        file = self.profile / "DevToolsActivePort"
        deadline = time.monotonic() + timeout
        while True:
            if self._process.poll() is not None:
                raise BrowserGone(self.obituary())
            lines = file.read_text().split() if file.exists() else []
            if len(lines) == 2:  # the file is written in two steps
                return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
            if time.monotonic() > deadline:
                raise BrowserGone(f"{self.executable} opened no debugging port in {timeout:g} s; {self.last_words()}")
            await asyncio.sleep(0.01)

    @property
    def pid(self) -> int:
        """Process id of the browser process; also the id of its process group."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def obituary(self) -> str:
        """One line about how the process ended, with its last words."""
        patience, self._patience = self._patience, 0.0  # once: it holds the event loop up
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)  # its connection breaks a moment before the kernel knows how it ended
        code = self._process.returncode
        if code is None:
            how = "is running"
        else:
            how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        return f"Chromium ({self.executable}, pid {self.pid}) {how}; {self.last_words()}"

    def last_words(self) -> str:
        """The end of what Chromium wrote to stderr."""
        try:
            lines = (self.profile / "stderr.log").read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        # A machine without a desktop has no D-Bus, which Chromium never tires of telling.
        text = "\n".join(line for line in lines if ":dbus/" not in line).strip()
        return f"its last words: {text[-1500:]}" if text else "it said nothing"

    def end(self) -> None:
        """Kill the whole process group, stopped and hung renderers included; see the class. Never fails, also twice."""
        if self._log.closed:
            return
        # First the undertaker: it must not find this group's number given to somebody else.
        self._undertaker.kill()
        self._undertaker.communicate()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()
        if self._keep:
            return
        # Children die a moment after the group was signalled and may still be writing into the profile.
        for _ in range(150):
            shutil.rmtree(self.profile, ignore_errors=True)
            if not self.profile.exists():
                break
            time.sleep(0.02)


def process_state(pid: int) -> str:
    """The kernel's one-letter state of a process (``T`` is stopped, ``Z`` a zombie), or an empty string if it is gone.

    Linux only.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[0]  # the name in parentheses may hold anything, so count from its end


def process_running(pid: int) -> bool:
    """Whether the process exists and is more than a zombie. Linux only."""
    return process_state(pid) not in ("", "Z", "X")


def memory_pss(pid: int) -> int:
    """Proportional set size of a process in bytes: its own memory plus its share of what it shares. Linux only.

    Raises:
        ChaosError: the process is gone, or this is not Linux.
    """
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError as error:
        raise ChaosError(f"cannot read the memory of process {pid}: {error}") from error
    for line in lines:
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise ChaosError(f"/proc/{pid}/smaps_rollup has no Pss line")
