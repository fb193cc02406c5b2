"""A sandbox with its stand-in as a process: the cluster that needs nothing but Python."""

import os
import sys
from pathlib import Path

from hack.localcluster.controllers import REPOSITORY
from hack.localcluster.environment import START_TIMEOUT, ClusterError, Environment
from hack.localcluster.polling import wait_until
from hack.localcluster.process import ProcessGroup

NAME = "sandbox"
LOG_LINES_IN_ERRORS = 8


class SandboxEnvironment(Environment):
    """`gpu-mirage-sandbox --stand-in` on a free port of 127.0.0.1, with an audit log; its objects are in memory."""

    @property
    def admin_kubeconfig(self) -> Path:
        return self.layout.kubeconfig("admin")

    def start(self) -> None:
        """Raises ClusterError with the end of the sandbox's log where it ends before it answers."""
        self.admin_kubeconfig.unlink(missing_ok=True)
        self._processes = ProcessGroup(self.data_dir)
        try:
            variables = os.environ | {"PYTHONPATH": str(REPOSITORY)}
            self.processes.start(NAME, self._command(), self.log(NAME), variables)
            # The kubeconfig is written once the server listens.
            wait_until(self._answers, START_TIMEOUT, f"the sandbox's start (log: {self.log(NAME)})", interval=0.02)
        except BaseException:
            self.stop()
            raise

    def _command(self) -> list[str]:
        options = ("--port=0", f"--kubeconfig={self.admin_kubeconfig}", f"--audit-log={self.layout.audit_log}")
        return [sys.executable, "-m", "controllers.sandbox", "--stand-in", *options]

    def _answers(self) -> bool:
        if self.admin_kubeconfig.is_file():
            return True
        code = self.processes.exit_code(NAME)
        if code is not None:
            lines = self.log(NAME).read_text(errors="replace").splitlines()[-LOG_LINES_IN_ERRORS:]
            raise ClusterError("\n".join([f"the sandbox ended with exit code {code} while starting:", *lines]))
        return False
