"""A control plane that can be started, stopped and called."""

import base64
import json
import shutil
import signal
import ssl
import urllib.request
from pathlib import Path
from typing import Any

from hack.localcluster.binaries import find_binaries
from hack.localcluster.certificates import CLIENTS, write_certificates
from hack.localcluster.components import AUDIT_POLICY, Component, Options, Plan, Ports
from hack.localcluster.environment import ClusterError, Environment
from hack.localcluster.kubeconfig import write_client_kubeconfig
from hack.localcluster.polling import wait_until
from hack.localcluster.ports import free_ports
from hack.localcluster.process import ProcessGroup

HEALTH_REQUEST_TIMEOUT = 2.0  # seconds
ETCD_REQUEST_TIMEOUT = 10.0  # seconds
LOG_LINES_IN_ERRORS = 8


class ControlPlaneError(ClusterError):
    """A component did not become healthy; the message has its last log lines and the path of the log."""


class ControlPlane(Environment):
    """etcd, kube-apiserver, kube-controller-manager, kube-scheduler and KWOK with all files in `data_dir`.

    A directory that was used before keeps its objects, certificates and tokens; ports are chosen anew per instance.
    Everything ends with `stop()`, and within five seconds when this process dies in any way.
    """

    def __init__(self, data_dir: Path, options: Options = Options()) -> None:  # noqa: B008 - frozen
        """Choose ports; nothing is started. Raises BinariesMissing where an executable is absent."""
        super().__init__(data_dir)
        self.options = options
        self._plan = Plan(self.layout, find_binaries(), Ports(*free_ports(6)), options)
        self._opener = urllib.request.build_opener()

    @property
    def server(self) -> str:
        """URL of the API server."""
        return self._plan.server

    @property
    def admin_kubeconfig(self) -> Path:
        """Kubeconfig of a user who may do everything."""
        return self.layout.kubeconfig("admin")

    @property
    def kubectl_path(self) -> Path:
        return self._plan.binaries.kubectl

    def start(self) -> None:
        """Start everything and return when it is healthy and pods can be created in the namespace `default`.

        Raises ControlPlaneError naming the component that failed; nothing runs then.
        """
        self._processes = ProcessGroup(self.data_dir)
        try:
            self._write_files()
            first: list[Component] = ["etcd", "kube-apiserver"]
            rest = [name for name in self._plan.components if name not in first]
            # The others give up where the API server does not answer them at once, so they start after it.
            for group in (first, rest):
                for component in group:
                    self._spawn(component)
                self._wait_healthy(group)
            self.wait_service_account("default")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all processes, etcd last. May be called again."""
        if self._processes is None:
            return
        processes, self._processes = self._processes, None
        with processes:
            processes.stop(processes.running() - {"etcd"}, self.options.stop_grace)
            processes.stop(["etcd"], self.options.stop_grace)

    def restart(self, component: Component) -> None:
        """Stop one component and start it again with the same port and flags; return when it is healthy.

        A restarted KWOK acts on a node only after the old lease of that node has run out (`node_lease_duration`).
        """
        self.stop_component(component)
        self.start_component(component)

    def stop_component(self, component: Component) -> None:
        """End one component and leave it down."""
        self.processes.stop([component], self.options.stop_grace)

    def kill_component(self, component: Component) -> None:
        """End one component with SIGKILL and leave it down."""
        self.processes.signal(component, signal.SIGKILL)
        self.processes.stop([component], self.options.stop_grace)

    def start_component(self, component: Component) -> None:
        """Start one component that is down; return when it is healthy. Raises ControlPlaneError where it is not."""
        self._spawn(component)
        self._wait_healthy([component])

    def compact(self) -> None:
        """Make etcd forget all versions before the present one, as the API server has it do every five minutes."""
        newest = self._ask_etcd("range", {"key": base64.b64encode(b"/").decode()})["header"]["revision"]
        self._ask_etcd("compaction", {"revision": newest, "physical": True})

    def healthy(self, component: Component) -> bool:
        """Whether a component's health endpoint answers 200 now."""
        url = self._plan.health_url(component)
        try:
            with self._opener.open(url, timeout=HEALTH_REQUEST_TIMEOUT) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    def components(self) -> list[Component]:
        """The components that this control plane consists of."""
        return self._plan.components

    def remove_state(self) -> None:
        """Delete the objects of a stopped control plane (etcd's files, some 130 MB) and keep logs and audit log."""
        shutil.rmtree(self.layout.etcd, ignore_errors=True)

    def _ask_etcd(self, what: str, body: dict[str, Any]) -> dict[str, Any]:
        url = f"{self._plan.etcd_url}/v3/kv/{what}"
        request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with self._opener.open(request, timeout=ETCD_REQUEST_TIMEOUT) as response:
            answer: dict[str, Any] = json.load(response)
        return answer

    def _write_files(self) -> None:
        write_certificates(self.layout)
        self._opener = _strict_opener(self.layout.ca)
        self.layout.audit_policy.write_text(AUDIT_POLICY)
        for name in CLIENTS:
            write_client_kubeconfig(self.layout, name, self.server)

    def _spawn(self, component: Component) -> None:
        self.processes.start(component, self._plan.command(component), self.layout.log(component))

    def _wait_healthy(self, components: list[Component]) -> None:
        waiting = list(components)

        def all_healthy() -> bool:
            for component in list(waiting):
                code = self.processes.exit_code(component)
                if code is not None:
                    raise ControlPlaneError(self._failure(component, f"ended with exit code {code} while starting"))
                if self.healthy(component):
                    waiting.remove(component)
            return not waiting

        try:
            wait_until(all_healthy, self.options.start_timeout, "a healthy start")
        except TimeoutError:
            reason = f"was not healthy within {self.options.start_timeout:g} s"
            raise ControlPlaneError(self._failure(waiting[0], reason)) from None

    def _failure(self, component: Component, reason: str) -> str:
        log = self.layout.log(component)
        lines = log.read_text(errors="replace").splitlines()[-LOG_LINES_IN_ERRORS:]
        return "\n".join([f"{component} {reason}; the end of {log}:", *lines])


def _strict_opener(ca: Path) -> urllib.request.OpenerDirector:
    """An HTTP client that trusts one CA, as strictly as newer Pythons do, and uses no proxy."""
    tls = ssl.create_default_context(cafile=str(ca))
    tls.verify_flags |= ssl.VERIFY_X509_STRICT
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls))
