"""Builds and runs the programs of all languages at once, and checks what they did. See scripts/examples.

Beside the languages there is one more check, `cloudevents`, which has no program: see cloud_events.py.
"""

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, TimeoutError, wait
from pathlib import Path

import cloud_events
from api import check_api
from pages import Page
from processes import ENDING, Failed, Processes
from scenario import Scenario
from world import ROOT, World

BUILD_WITHIN = 300
RUN_WITHIN = 900
CLEAN_UP_WITHIN = 15
# `prisma generate` would download this program, and does not run it.
BUILD_ENV = {"PRISMA_SCHEMA_ENGINE_BINARY": "/bin/true"}
WORK = ROOT / "target" / "examples"
BUILT = {".venv", "__pycache__", "bin", "dist", "generated", "node_modules", "target"}

# The programs that each language needs, with the lowest version that works: a command, and a number of its output.
TOOLCHAINS = {
    "go": [("go version", r"go1\.(\d+)", 21)],  # which fetches the toolchain of go.mod
    "java": [("javac -version", r"javac (\d+)", 17), ("mvn -version", r"Maven (\d+)", 3)],
    "python": [("python3 --version", r"3\.(\d+)", 10)],
    "rust": [("cargo --version", r"cargo 1\.(\d+)", 86)],
    "typescript": [("node --version", r"v(\d+)", 20), ("npm --version", r"(\d+)", 9)],
    "cloudevents": [],
}
TOOLCHAINS["orms"] = TOOLCHAINS["java"] + TOOLCHAINS["python"] + TOOLCHAINS["typescript"]


def missing(language: str) -> str | None:
    for command, pattern, lowest in TOOLCHAINS[language]:
        program = command.split()[0]
        if not shutil.which(program):
            return f"{program} is not installed"
        done = subprocess.run(command.split(), capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
        version = re.search(pattern, done.stdout + done.stderr)
        if not version or int(version[1]) < lowest:
            return f"{program} is too old: {(done.stdout + done.stderr).strip().splitlines()[:1]}"
    return None


def say(text: str) -> None:
    print(f"examples: {text}", file=sys.stderr, flush=True)


def new_folder(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def built(folder: str, names: list[str]) -> set[str]:
    """What is not copied. `bin` has the programs of Go, but the sources of Rust."""
    return BUILT.intersection(names) - ({"bin"} if Path(folder).name == "src" else set())


def check_language(language: str, processes: Processes) -> None:
    """Builds and runs a copy of the programs in target/, so that nothing is written to the tree."""
    page, logs, folder = Page(language), new_folder(WORK / "logs" / language), new_folder(WORK / language)
    shutil.copytree(ROOT / "examples" / language, folder, ignore=built, dirs_exist_ok=True)
    log = logs / "build.log"
    if language == "rust":
        use_own_crates(folder)
    for text in page.builds():
        if processes.run(["bash", "-euo", "pipefail", "-c", text], folder, BUILD_ENV, log, BUILD_WITHIN) != 0:
            raise Failed(f"the build failed:\n{log.read_text()[-3000:]}")
    world = World(language, folder, logs, page.variables(), processes)
    try:
        world.start()
        scenario = Scenario(world, page)
        scenario.run()
        if command := page.api():
            check_api(scenario, command)
    finally:
        world.end()


def use_own_crates(folder: Path) -> None:
    """The page uses the released crates. This makes Cargo use those of the checkout, and keeps what it has compiled."""
    (folder / ".cargo").mkdir()
    (folder / ".cargo" / "config.toml").write_text(
        f"""[build]
target-dir = "{WORK / "rust-target"}"
[patch.crates-io]
pg-outbox = {{ path = "{ROOT / "client"}" }}
pg-outbox-derive = {{ path = "{ROOT / "client" / "derive"}" }}
"""
    )


def check_cloud_events(processes: Processes) -> None:
    logs = new_folder(WORK / "logs" / "cloudevents")
    world = World("cloudevents", logs, logs, [], processes, cloud_events.RELAY)
    try:
        world.start()
        cloud_events.check_cloud_events(world)
    finally:
        world.end()


def checked(language: str, processes: Processes) -> bool:
    began = time.monotonic()
    try:
        if language == "cloudevents":
            check_cloud_events(processes)
        else:
            check_language(language, processes)
        say(f"{language}: passed ({time.monotonic() - began:.0f} s)")
        return True
    except Failed as failed:
        reason = str(failed)
    except Exception as error:  # a bug in the run, or a server that has ended
        reason = f"{type(error).__name__}: {error}"
    if not ENDING.is_set():
        say(f"{language}: FAILED: {reason}")
    return False


def main(named: list[str]) -> int:
    unknown = [name for name in named if name not in TOOLCHAINS]
    if unknown:
        say(f"unknown languages: {' '.join(unknown)}; choose from {' '.join(TOOLCHAINS)}")
        return 2
    WORK.mkdir(parents=True, exist_ok=True)
    lock = open(WORK / "lock", "w")  # closed when the process ends
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("another run is in progress in this checkout")
        return 1
    languages, passed = [], True
    for language in named or TOOLCHAINS:
        reason = missing(language)
        if reason is None:
            languages.append(language)
        elif named:
            say(f"{language}: FAILED: {reason}")
            passed = False
        else:
            say(f"{language}: skipped, {reason}")
    processes = {language: Processes() for language in languages}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    executor = ThreadPoolExecutor(max(len(languages), 1))
    runs = {}
    try:
        runs = {language: executor.submit(checked, language, processes[language]) for language in languages}
        deadline = time.monotonic() + RUN_WITHIN
        for language, run in runs.items():
            passed &= run.result(max(deadline - time.monotonic(), 0))
    except TimeoutError:
        say(f"FAILED: not within {RUN_WITHIN} s: {', '.join(name for name, run in runs.items() if not run.done())}")
        passed = False
    finally:
        ENDING.set()
        for of_language in processes.values():
            of_language.kill_all()
        wait(runs.values(), timeout=CLEAN_UP_WITHIN)  # each one deletes its database and its topic
    return 0 if passed else 1


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
    except SystemExit as signaled:
        code = signaled.code
    sys.stderr.flush()
    os._exit(code)  # a thread that still waits must not keep the run alive
