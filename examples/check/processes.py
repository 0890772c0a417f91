"""The processes of a run. Each one ends with the run, however the run ends."""

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

WITHIN = 60  # seconds for anything that servers and programs do
ENDING = threading.Event()  # set when the run is interrupted


class Failed(Exception):
    """A check that failed. The message is all that a reader needs."""


def wait_until(what: str, condition, within: float = WITHIN):
    """Waits until the condition returns something true, and returns it."""
    deadline = time.monotonic() + within
    while not (result := condition()):
        if ENDING.is_set():
            raise Failed("interrupted")
        if time.monotonic() > deadline:
            raise Failed(f"not within {within} s: {what}")
        time.sleep(0.05)
    return result


class Processes:
    def __init__(self):
        self.lock = threading.Lock()
        self.children: list[subprocess.Popen] = []
        self.ended = False

    def start(self, command: list[str], folder: Path, env: dict[str, str], log: Path) -> subprocess.Popen:
        """Starts a process. The kernel kills it if the run is killed."""
        with self.lock, open(log, "ab") as output:
            if self.ended:
                raise Failed("the run is ending")
            child = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command],
                cwd=folder,
                env={**os.environ, **env},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            self.children.append(child)
            return child

    def run(self, command: list[str], folder: Path, env: dict[str, str], log: Path, within: float = WITHIN) -> int:
        """Runs a command to its end, and returns its exit code."""
        child = self.start(command, folder, env, log)
        try:
            return child.wait(within)
        except subprocess.TimeoutExpired:
            self.kill(child)
            raise Failed(f"not within {within} s: {' '.join(command)}; its output is {log}") from None

    def stop(self, child: subprocess.Popen) -> int:
        """Sends SIGTERM and returns the exit code."""
        child.send_signal(signal.SIGTERM)
        try:
            return child.wait(WITHIN)
        except subprocess.TimeoutExpired:
            raise Failed(f"process {child.args} did not end within {WITHIN} s of SIGTERM") from None

    def kill(self, child: subprocess.Popen) -> None:
        """Kills a process and what it has started: each one is a process group."""
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it has ended, and so have its children
        child.wait()

    def kill_all(self) -> None:
        with self.lock:
            self.ended = True
            for child in self.children:
                if child.poll() is None:
                    self.kill(child)
