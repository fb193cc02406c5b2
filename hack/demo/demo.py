"""The run itself: nodes, controllers, a domain and its workers, and what came of them."""

import json
import shutil
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

from hack.demo import tables
from hack.demo.borrowed import Unfit
from hack.demo.manifests import samples_for, without_deployments
from hack.demo.options import DemoOptions
from hack.demo.progress import Progress, State
from hack.localcluster import ControllerProcess, Environment, delete_nodes, make_nodes
from hack.localcluster.controllers import NAMESPACE, REPOSITORY
from hack.localcluster.nodes import POOL_LABEL, clique, is_schedulable

INSTALLATION = ("config/default", "config/base/channel-slices")
SAMPLES = "config/samples"
DRIVER = "compute-domain.nvidia.com"

TIMEOUT = 120.0
"""Seconds for one step; a busy machine, not the controllers, needs more than a few."""

NODES_TIMEOUT = 45.0
"""Seconds for KWOK to make the nodes Ready; it takes one or two."""

REMOVAL_TIMEOUT = "90s"
LOG_LINES = 15  # of each controller's log, shown after a failure

Manifest = dict[str, Any]


class Demo:
    """One run on one cluster. `run` may be called once."""

    def __init__(self, cluster: Environment, options: DemoOptions, progress: Progress) -> None:
        self._cluster = cluster
        self._options = options
        self._progress = progress
        self._namespace = options.prefix
        self._controllers: list[ControllerProcess] = []
        self._samples = samples_for(self._rendered(SAMPLES), self._namespace, options.nodes)

    def run(self, cleanup: ExitStack) -> None:
        """Bring the domain to Ready. What must be taken back from a borrowed cluster is pushed on `cleanup`.

        Raises KubectlError, ProcessError, TimeoutError or Unfit where something does not come about.
        """
        if self._options.kubeconfig:
            self._refuse_existing("namespace", [self._namespace])
            self._refuse_existing("node", self._node_names())
        deployed = self._deployed_controllers()
        if not deployed:
            self._install()
        self._make_nodes(cleanup)
        if not deployed:
            self._start_controllers()
        self._follow("the channel slices", self._slices_state)
        self._apply_samples(cleanup)
        self._follow("readiness of the domain", self._domain_state)

    def report(self) -> str:
        """Tables of everything that exists now."""
        kubectl, inside = self._cluster.kubectl, f"--namespace={self._namespace}"
        domain = self._domain()
        sections = {
            "Domain": kubectl("get", "computedomains", self._samples.domain, inside),
            "Members": tables.members(domain),
            "Template": kubectl("get", "resourceclaimtemplates", inside),
            "Claims": tables.claims(self._items("resourceclaims")),
            "Slices": tables.slices(self._slices()),
        }
        return "\n\n".join(f"{title}\n{table.strip()}" for title, table in sections.items())

    def suggestions(self) -> str:
        """How to go on by hand."""
        kubectl, namespace = _command(self._cluster.kubectl_path), self._namespace
        workers, fewer = self._samples.workers, self._options.nodes - 1
        return "\n".join(
            [
                f"export KUBECONFIG={self._cluster.admin_kubeconfig}",
                f"{kubectl} get computedomains -n {namespace} --watch",
                f"{kubectl} scale deployment {workers} -n {namespace} --replicas={fewer}    # one member leaves",
                f"{kubectl} delete computedomain {self._samples.domain} -n {namespace}    # template and labels go",
            ]
        )

    def log_tail(self) -> str:
        """The last lines of the controllers' logs; "" where none has written anything."""
        return "\n".join(_tail(controller.log) for controller in self._controllers if controller.log.is_file())

    # -- the steps ----------------------------------------------------------------------------------------------------

    def _deployed_controllers(self) -> list[str]:
        """Controllers that run in the cluster already: a second one would write the same objects."""
        listed = self._cluster.kubectl_json("get", "deployments", f"--namespace={NAMESPACE}")["items"]
        names = [deployment["metadata"]["name"] for deployment in listed]
        if names:
            self._progress.say(f"the cluster's own {', '.join(names)} will serve the demo")
        return names

    def _install(self) -> None:
        documents = [document for path in INSTALLATION for document in self._rendered(path)]
        self._apply(without_deployments(documents))
        definitions = [item["metadata"]["name"] for item in documents if item["kind"] == "CustomResourceDefinition"]
        self._cluster.kubectl("wait", "--for=condition=Established", "customresourcedefinitions", *definitions)
        self._progress.say("CRDs, device classes, accounts and rights are applied")

    def _make_nodes(self, cleanup: ExitStack) -> None:
        if self._options.kubeconfig:
            cleanup.callback(self._remove_nodes)
        racks = {clique(rack): self._options.nodes_per_rack for rack in range(self._options.racks)}
        make_nodes(self._cluster, racks, prefix=self._node_prefix, pool=self._namespace)
        try:
            self._follow("readiness of the nodes", self._nodes_state, NODES_TIMEOUT)
        except TimeoutError as error:
            raise Unfit(
                f"{error}. KWOK makes such nodes Ready: it does not run here, or does not manage nodes with the "
                "annotation kwok.x-k8s.io/node=fake. See https://kwok.sigs.k8s.io/docs/user/kwok-in-cluster/"
            ) from error

    def _start_controllers(self) -> None:
        self._controllers = [
            ControllerProcess(self._cluster, arguments=["--no-channel-slices"]),
            ControllerProcess(
                self._cluster, package="channel_slices", account="gpu-mirage-channel-slices", name="channel-slices"
            ),
        ]
        for controller in self._controllers:
            controller.start(wait=False)
        self._follow("readiness of the controllers", self._controllers_state)

    def _apply_samples(self, cleanup: ExitStack) -> None:
        if self._options.kubeconfig:
            cleanup.callback(self._remove_namespace)
        if not self._cluster.kubectl("get", "namespace", self._namespace, "--ignore-not-found"):
            self._cluster.create_namespace(self._namespace)
        self._apply(self._samples.documents)
        self._progress.say(
            f"config/samples is applied in namespace {self._namespace}: "
            f"ComputeDomain {self._samples.domain}, Deployment {self._samples.workers}"
        )

    def _remove_nodes(self) -> None:
        self._progress.say("removing the nodes")
        delete_nodes(self._cluster, self._node_names())

    def _remove_namespace(self) -> None:
        self._progress.say(f"removing the namespace {self._namespace}")
        self._cluster.kubectl(
            "delete", "namespace", self._namespace, "--ignore-not-found", f"--timeout={REMOVAL_TIMEOUT}"
        )

    def _refuse_existing(self, kind: str, names: list[str]) -> None:
        """What exists is somebody's, and the demo would delete it at its end."""
        found = self._cluster.kubectl("get", kind, *names, "--ignore-not-found", "--output=name").split()
        if found:
            raise Unfit(f"{', '.join(found)} exists in the cluster: choose another --prefix")

    # -- how far things are -------------------------------------------------------------------------------------------

    def _follow(self, what: str, look: Callable[[], State], timeout: float = TIMEOUT) -> None:
        def look_at_both() -> State:
            self._check_controllers()
            return look()

        self._progress.follow(look_at_both, timeout, what)

    def _check_controllers(self) -> None:
        for controller in self._controllers:
            code = self._cluster.processes.exit_code(controller.name)
            if code is not None:
                raise Unfit(f"the controller {controller.name} ended with exit code {code}")

    def _nodes_state(self) -> State:
        ready = [node for node in self._nodes() if is_schedulable(node)]
        text = f"nodes ready {len(ready)}/{self._options.nodes} in {self._options.racks} racks"
        return State(text, len(ready) >= self._options.nodes)

    def _controllers_state(self) -> State:
        ready = [controller.name for controller in self._controllers if controller.ready()]
        text = f"controllers ready {len(ready)}/{len(self._controllers)} {', '.join(ready)}".strip()
        return State(text, len(ready) == len(self._controllers))

    def _slices_state(self) -> State:
        found = len(self._slices())
        return State(f"channel slices {found}/{self._options.nodes}", found >= self._options.nodes)

    def _domain_state(self) -> State:
        total, status = self._options.nodes, self._domain().get("status", {})
        templates = [item["metadata"]["name"] for item in self._items("resourceclaimtemplates")]
        running = [pod for pod in self._items("pods") if pod["status"].get("phase") == "Running"]
        claims = [claim for claim in self._items("resourceclaims") if tables.allocated(claim)]
        template = "made" if self._samples.template in templates else "missing"
        text = (
            f"template {template}, pods running {len(running)}/{total}, claims allocated {len(claims)}/{total}, "
            f"members {len(status.get('nodes', []))}/{total}, domain {status.get('status', 'without status')}"
        )
        everything = status.get("status") == "Ready" and len(running) >= total and len(claims) >= total
        return State(text, everything)

    # -- looking at the cluster ---------------------------------------------------------------------------------------

    @property
    def _node_prefix(self) -> str:
        return f"{self._options.prefix}-rack"

    def _node_names(self) -> list[str]:
        racks, size = range(self._options.racks), range(self._options.nodes_per_rack)
        return [f"{self._node_prefix}-{rack}-{node}" for rack in racks for node in size]

    def _nodes(self) -> list[Manifest]:
        selector = f"--selector={POOL_LABEL}={self._namespace}"
        items: list[Manifest] = self._cluster.kubectl_json("get", "nodes", selector)["items"]
        return items

    def _slices(self) -> list[Manifest]:
        wanted = set(self._node_names())
        items = self._cluster.kubectl_json("get", "resourceslices", f"--field-selector=spec.driver={DRIVER}")["items"]
        return [item for item in items if item["spec"].get("nodeName") in wanted]

    def _domain(self) -> Manifest:
        return self._cluster.kubectl_json(
            "get", "computedomains", self._samples.domain, f"--namespace={self._namespace}"
        )

    def _items(self, kind: str) -> list[Manifest]:
        items: list[Manifest] = self._cluster.kubectl_json("get", kind, f"--namespace={self._namespace}")["items"]
        return items

    def _rendered(self, path: str) -> list[Manifest]:
        return list(yaml.safe_load_all(self._cluster.kubectl("kustomize", str(REPOSITORY / path))))

    def _apply(self, documents: Iterable[Manifest]) -> None:
        listing = {"apiVersion": "v1", "kind": "List", "items": list(documents)}
        self._cluster.kubectl("apply", "--server-side", "--filename=-", input=json.dumps(listing))


def _command(kubectl: Path) -> str:
    """How a person calls kubectl here: by its name where the PATH has it, else by its path."""
    if shutil.which("kubectl"):
        return "kubectl"
    return str(kubectl.relative_to(Path.cwd()) if kubectl.is_relative_to(Path.cwd()) else kubectl)


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
    return "\n".join([f"the end of the log of {log.stem}:", *(f"  {line}" for line in lines)])
