"""A sandbox with its stand-in as a process: the cluster that needs nothing but Python."""

import os
import signal
import sys
from pathlib import Path

from hack.localcluster.controllers import REPOSITORY
from hack.localcluster.environment import START_TIMEOUT, STOP_GRACE, ClusterError, Environment
from hack.localcluster.polling import wait_until
from hack.localcluster.ports import free_ports
from hack.localcluster.process import ProcessGroup

NAME = "sandbox"
LOG_LINES_IN_ERRORS = 8


class SandboxEnvironment(Environment):
    """`gpu-mirage-sandbox --stand-in` on a free port of 127.0.0.1, with an audit log.

    Its objects are in memory, or, if it is `durable`, in a file: then it can be killed and started again on the same
    port. With `admin` it serves `/sandbox`, where faults can be asked for.
    """

    def __init__(self, data_dir: Path, *, durable: bool = False, admin: bool = False) -> None:
        super().__init__(data_dir)
        self._port = free_ports(1)[0] if durable else 0
        self._flags = ["--admin"] if admin else []
        if durable:
            self._flags.append(f"--data-dir={self.layout.sandbox}")

    @property
    def admin_kubeconfig(self) -> Path:
        return self.layout.kubeconfig("admin")

    def start(self) -> None:
        """Raises ClusterError with the end of the sandbox's log where it ends before it answers."""
        self._processes = ProcessGroup(self.data_dir)
        try:
            self.start_server()
        except BaseException:
            self.stop()
            raise

    def kill_server(self) -> None:
        """End the sandbox with SIGKILL and leave it down."""
        self.processes.signal(NAME, signal.SIGKILL)
        self.processes.stop([NAME], STOP_GRACE)

    def start_server(self) -> None:
        """Start the sandbox where it is down; return when it answers. Raises ClusterError where it ends before."""
        self.admin_kubeconfig.unlink(missing_ok=True)
        variables = os.environ | {"PYTHONPATH": str(REPOSITORY)}
        self.processes.start(NAME, self._command(), self.log(NAME), variables)
        # The kubeconfig is written once the server listens.
        wait_until(self._answers, START_TIMEOUT, f"the sandbox's start (log: {self.log(NAME)})", interval=0.02)

    def _command(self) -> list[str]:
        files = (f"--kubeconfig={self.admin_kubeconfig}", f"--audit-log={self.layout.audit_log}")
        return [sys.executable, "-m", "controllers.sandbox", "--stand-in", f"--port={self._port}", *files, *self._flags]

    def _answers(self) -> bool:
        if self.admin_kubeconfig.is_file():
            return True
        code = self.processes.exit_code(NAME)
        if code is not None:
            lines = self.log(NAME).read_text(errors="replace").splitlines()[-LOG_LINES_IN_ERRORS:]
            raise ClusterError("\n".join([f"the sandbox ended with exit code {code} while starting:", *lines]))
        return False
