"""Owns the processes of one data directory and kills them when the process that asked for them is gone.

Run as a script by `hack.localcluster.process`, with the standard library only. One JSON object per line comes in on
stdin and one answer per line goes out on stdout. Three things make orphans impossible: the reaper starts the processes
itself, so there is no moment in which one exists that it does not know; it kills all of them when its stdin closes or
its parent changes, which a SIGKILL of the parent brings about; and the kernel kills them should the reaper itself die.
"""

import ctypes
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, TextIO

# How often, in seconds, the parent is looked for. A forked child of the parent may hold the pipe open after its death,
# so the end of stdin alone is not enough.
PARENT_CHECK_INTERVAL = 0.5
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)

Message = dict[str, Any]


class Reaper:
    """The processes by name, and what may be asked about them."""

    def __init__(self) -> None:
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def answer(self, request: Message) -> Message:
        """Do what one request asks. An OSError of the operating system is part of the answer."""
        try:
            match request:
                case {"start": str(name), "command": list(command), "log": str(log), "environment": environment}:
                    return {"pid": self._start(name, command, log, environment)}
                case {"signal": str(name), "number": int(number)}:
                    self._signal(name, number)
                    return {}
                case {"poll": str(name)}:
                    return {"code": self._processes[name].poll()}
        except OSError as error:
            return {"error": str(error)}
        return {"error": f"unknown request {request}"}

    def kill_all(self) -> None:
        for name in self._processes:
            self._signal(name, signal.SIGKILL)
        for process in self._processes.values():
            process.wait()

    def _start(self, name: str, command: list[str], log: str, environment: dict[str, str] | None) -> int:
        own_pid = os.getpid()

        def die_with_reaper() -> None:
            LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            # The reaper may have died between the fork and the line above; no signal would come then.
            if os.getppid() != own_pid:
                os.kill(os.getpid(), signal.SIGKILL)

        with Path(log).open("ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
                # Safe here: this process has one thread, which is also the one whose end the kernel watches.
                preexec_fn=die_with_reaper,
            )
        self._processes[name] = process
        return process.pid

    def _signal(self, name: str, number: int) -> None:
        process = self._processes[name]
        # After poll() has collected the process its number may belong to someone else.
        if process.poll() is None:
            os.killpg(process.pid, number)


def lock(directory: Path) -> TextIO:
    """Take the data directory for this process. Raises OSError where another cluster has it."""
    file = (directory / "lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise OSError(f"{directory} is in use by another cluster: stop that one or choose another directory") from None
    return file


def serve(reaper: Reaper, parent: int) -> None:
    """Answer requests until stdin ends or `parent` is no longer the parent of this process."""
    pending = b""
    while os.getppid() == parent:
        readable, _, _ = select.select([0], [], [], PARENT_CHECK_INTERVAL)
        if not readable:
            continue
        received = os.read(0, 65536)
        if not received:
            return
        *lines, pending = (pending + received).split(b"\n")
        for line in lines:
            send(reaper.answer(json.loads(line)))


def send(message: Message) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


def main() -> None:
    directory, parent = Path(sys.argv[1]), int(sys.argv[2])
    try:
        held = lock(directory)
    except OSError as error:
        send({"error": str(error)})
        return
    reaper = Reaper()
    with held:
        try:
            send({})
            serve(reaper, parent)
        except BrokenPipeError:
            pass  # The parent died while it waited for an answer; what follows is the same.
        finally:
            reaper.kill_all()


if __name__ == "__main__":
    main()
