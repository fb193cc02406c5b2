"""A control plane that can be started, stopped and called."""

import json
import os
import shutil
import signal
import ssl
import subprocess
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hack.localcluster.binaries import find_binaries
from hack.localcluster.certificates import CLIENTS, write_certificates
from hack.localcluster.components import AUDIT_POLICY, Component, Options, Plan, Ports
from hack.localcluster.kubeconfig import write_client_kubeconfig, write_token_kubeconfig
from hack.localcluster.layout import Layout
from hack.localcluster.polling import wait_until
from hack.localcluster.ports import free_ports
from hack.localcluster.process import ProcessGroup

HEALTH_REQUEST_TIMEOUT = 2.0  # seconds
TOKEN_LIFETIME = "24h"
KUBECTL_TIMEOUT = 120.0  # seconds
LOG_LINES_IN_ERRORS = 8


class ControlPlaneError(Exception):
    """A component did not become healthy; the message has its last log lines and the path of the log."""


class KubectlError(Exception):
    """kubectl ended with an error; the message is the command and what it printed."""


class ControlPlane:
    """etcd, kube-apiserver, kube-controller-manager, kube-scheduler and KWOK with all files in `data_dir`.

    A directory that was used before keeps its objects, certificates and tokens; ports are chosen anew per instance.
    Everything ends with `stop()`, and within five seconds when this process dies in any way.
    """

    def __init__(self, data_dir: Path, options: Options = Options()) -> None:  # noqa: B008 - frozen
        """Choose ports; nothing is started. Raises BinariesMissing where an executable is absent."""
        self.options = options
        self.layout = Layout(data_dir.resolve())
        self._plan = Plan(self.layout, find_binaries(), Ports(*free_ports(6)), options)
        self._processes: ProcessGroup | None = None
        self._opener = urllib.request.build_opener()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def data_dir(self) -> Path:
        return self.layout.root

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

    @property
    def processes(self) -> ProcessGroup:
        """The processes; others may be started in the group to share its end. Raises ControlPlaneError when stopped."""
        if self._processes is None:
            raise ControlPlaneError(f"the control plane in {self.data_dir} is not running: call start() first")
        return self._processes

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
            self._wait_service_account("default")
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

    def log(self, name: str) -> Path:
        """The log file of a component."""
        return self.layout.log(name)

    def kubeconfig_for(self, namespace: str, service_account: str) -> Path:
        """Ask for a token of a service account, valid for 24 h, and return the path of a kubeconfig with it."""
        token = self.kubectl(
            "create", "token", service_account, f"--namespace={namespace}", f"--duration={TOKEN_LIFETIME}"
        )
        return write_token_kubeconfig(self.layout, namespace, service_account, self.server, token.strip())

    def kubectl(
        self,
        *arguments: str,
        input: str | None = None,  # noqa: A002 - as in subprocess.run
        kubeconfig: Path | None = None,
        timeout: float = KUBECTL_TIMEOUT,
    ) -> str:
        """Run kubectl, as admin unless another kubeconfig is given, and return what it printed.

        Raises KubectlError where it fails, subprocess.TimeoutExpired after `timeout` seconds.
        """
        # Discovery is cached per data directory: another cluster on the same port must not be mistaken for this one.
        environment = os.environ | {"KUBECACHEDIR": str(self.layout.kubectl_cache), "KUBERC": "off"}
        command = [str(self.kubectl_path), f"--kubeconfig={kubeconfig or self.admin_kubeconfig}", *arguments]
        done = subprocess.run(
            command, input=input, env=environment, capture_output=True, text=True, timeout=timeout, check=False
        )
        if done.returncode != 0:
            raise KubectlError(f"kubectl {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def kubectl_json(self, *arguments: str, kubeconfig: Path | None = None) -> dict[str, Any]:
        """Run kubectl with `--output=json` and return the parsed object or list. Raises KubectlError."""
        parsed: dict[str, Any] = json.loads(self.kubectl(*arguments, "--output=json", kubeconfig=kubeconfig))
        return parsed

    def create_namespace(self, name: str) -> None:
        """Create a namespace and return when pods can be created in it."""
        self.kubectl("create", "namespace", name)
        self._wait_service_account(name)

    def delete_namespace(self, name: str) -> None:
        """Delete a namespace and wait for the end of its pods; the namespace itself goes some 5 s later."""
        # The namespace first, as nothing can be created in it from then on. Its pods are deleted here because the
        # namespace controller, having seen one, would look again only after half of the pod's grace period.
        self.kubectl("delete", "namespace", name, "--wait=false")
        self.kubectl("delete", "pods", "--all", f"--namespace={name}")

    def audit_events(self) -> list[dict[str, Any]]:
        """All events of the audit log (audit.k8s.io/v1, level Metadata), oldest first.

        An event is written just after its response is sent, so the last ones may appear a moment later.
        """
        lines = self.layout.audit_log.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def remove_state(self) -> None:
        """Delete the objects of a stopped control plane (etcd's files, some 130 MB) and keep logs and audit log."""
        shutil.rmtree(self.layout.etcd, ignore_errors=True)

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

    def _wait_service_account(self, namespace: str) -> None:
        """Wait for what the controller manager adds to a namespace; before it, pods there are refused."""
        query = ("get", "serviceaccount", "default", f"--namespace={namespace}", "--ignore-not-found", "--output=name")
        what = f"the creation of the service account default in the namespace {namespace}"
        wait_until(lambda: bool(self.kubectl(*query).strip()), self.options.start_timeout, what)

    def _failure(self, component: Component, reason: str) -> str:
        log = self.layout.log(component)
        lines = log.read_text(errors="replace").splitlines()[-LOG_LINES_IN_ERRORS:]
        return "\n".join([f"{component} {reason}; the end of {log}:", *lines])


def _strict_opener(ca: Path) -> urllib.request.OpenerDirector:
    """An HTTP client that trusts one CA, as strictly as newer Pythons do, and uses no proxy."""
    tls = ssl.create_default_context(cafile=str(ca))
    tls.verify_flags |= ssl.VERIFY_X509_STRICT
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls))
