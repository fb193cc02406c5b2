"""Lists: envelope, order, selectors, pages, versions and renderings."""

import pytest

from tests.contract.api_server import ApiServer

TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}


def maps(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"


@pytest.fixture
def five(server: ApiServer, namespace: str) -> str:
    """A namespace with the ConfigMaps a to e, labelled in turn, and without any other."""
    for number, name in enumerate("dbeca"):
        labels = {"name": name, "parity": "even" if number % 2 == 0 else "odd", "test": "five"}
        server.create(maps(namespace), {"metadata": {"name": name, "labels": labels}, "data": {"n": str(number)}})
    return namespace


def names(server: ApiServer, namespace: str, **query: str) -> list[str]:
    reply = server.get(maps(namespace), **query)
    assert reply.code == 200, reply
    return [item["metadata"]["name"] for item in reply.body["items"]]


def test_list_has_envelope_and_sorted_bare_items(server: ApiServer, five: str) -> None:
    body = server.get(maps(five), labelSelector="test=five").body
    assert (body["kind"], body["apiVersion"]) == ("ConfigMapList", "v1")
    assert body["metadata"]["resourceVersion"].isdigit()
    assert [item["metadata"]["name"] for item in body["items"]] == ["a", "b", "c", "d", "e"]
    assert not {"kind", "apiVersion"} & set(body["items"][0])


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ("test=five", "abcde"),
        ("parity=even", "ade"),
        ("parity==odd", "bc"),
        ("test=five,parity!=odd", "ade"),
        ("name in (a, b)", "ab"),
        ("test,name notin (a,b)", "cde"),
        ("test,!parity", ""),
        ("parity,name!=a", "bcde"),
    ],
)
def test_label_selectors_select(server: ApiServer, five: str, selector: str, found: str) -> None:
    assert names(server, five, labelSelector=selector) == list(found)


@pytest.mark.parametrize("selector", ["a in (", "a=b=c", "a,,b", "-a=b", "a in b", "a b", "=x"])
def test_broken_label_selectors_are_refused(server: ApiServer, five: str, selector: str) -> None:
    reply = server.get(maps(five), labelSelector=selector)
    assert (reply.code, reply.reason) == (400, "BadRequest")


def test_field_selectors_select_or_are_refused(server: ApiServer, five: str) -> None:
    assert names(server, five, fieldSelector="metadata.name=b") == ["b"]
    assert names(server, five, labelSelector="test", fieldSelector="metadata.name!=b") == ["a", "c", "d", "e"]
    assert names(server, five, labelSelector="test", fieldSelector="metadata.namespace=other") == []
    for unknown in ("data.n=1", "broken"):
        reply = server.get(maps(five), fieldSelector=unknown)
        assert (reply.code, reply.reason) == (400, "BadRequest")


def test_pods_are_selected_by_node_and_phase(server: ApiServer, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    container = {"name": "c", "image": "i"}
    server.create(path, {"metadata": {"name": "placed"}, "spec": {"nodeName": "some-node", "containers": [container]}})
    gates = [{"name": "test.example.com/never"}]
    server.create(path, {"metadata": {"name": "free"}, "spec": {"schedulingGates": gates, "containers": [container]}})

    def found(selector: str) -> list[str]:
        return [pod["metadata"]["name"] for pod in server.get(path, fieldSelector=selector).body["items"]]

    assert found("spec.nodeName=some-node,status.phase=Pending") == ["placed"]
    assert found("spec.nodeName=") == ["free"]


def test_pages_are_of_one_version(server: ApiServer, five: str) -> None:
    first = server.get(maps(five), labelSelector="test", limit="2").body
    assert "remainingItemCount" not in first["metadata"]
    server.create(maps(five), {"metadata": {"name": "cc", "labels": {"test": "late"}}})
    server.send("DELETE", maps(five) + "/e")
    seen = [item["metadata"]["name"] for item in first["items"]]
    token, version = first["metadata"]["continue"], first["metadata"]["resourceVersion"]
    while token:
        page = server.get(maps(five), labelSelector="test", limit="2", **{"continue": token}).body
        assert page["metadata"]["resourceVersion"] == version
        seen += [item["metadata"]["name"] for item in page["items"]]
        token = page["metadata"].get("continue", "")
    assert seen == ["a", "b", "c", "d", "e"]


def test_first_page_counts_what_remains(server: ApiServer, five: str) -> None:
    metadata = server.get(maps(five), limit="1").body["metadata"]
    total = len(server.get(maps(five)).body["items"])
    assert metadata["remainingItemCount"] == total - 1


def test_exact_version_shows_the_past(server: ApiServer, five: str) -> None:
    version = server.get(maps(five)).body["metadata"]["resourceVersion"]
    server.send("DELETE", maps(five) + "/a")
    server.create(maps(five), {"metadata": {"name": "new", "labels": {"test": "five"}}})
    exact = {"resourceVersion": version, "resourceVersionMatch": "Exact", "labelSelector": "test"}
    body = server.get(maps(five), **exact).body
    assert [item["metadata"]["name"] for item in body["items"]] == ["a", "b", "c", "d", "e"]
    assert body["metadata"]["resourceVersion"] == version
    later = {"resourceVersion": version, "resourceVersionMatch": "NotOlderThan", "labelSelector": "test"}
    assert names(server, five, **later) == ["b", "c", "d", "e", "new"]


@pytest.mark.parametrize(
    ("query", "code", "reason"),
    [
        ({"resourceVersion": "abc"}, 400, "BadRequest"),
        ({"limit": "abc"}, 400, "BadRequest"),
        ({"continue": "abc"}, 400, "BadRequest"),
        ({"resourceVersionMatch": "Exact"}, 422, "Invalid"),
        ({"resourceVersionMatch": "Exact", "resourceVersion": "0"}, 422, "Invalid"),
        ({"resourceVersionMatch": "Other", "resourceVersion": "5"}, 422, "Invalid"),
        ({"sendInitialEvents": "true"}, 422, "Invalid"),
        ({"resourceVersion": "99999999"}, 504, "Timeout"),
    ],
)
def test_impossible_versions_are_refused(
    server: ApiServer, five: str, query: dict[str, str], code: int, reason: str
) -> None:
    reply = server.get(maps(five), **query)
    assert (reply.code, reply.reason) == (code, reason)


def test_version_still_to_come_is_told_with_its_cause(server: ApiServer, five: str) -> None:
    details = server.get(maps(five), resourceVersion="99999999").body["details"]
    assert details["causes"] == [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
    assert details["retryAfterSeconds"] == 1


def test_table_has_columns_and_rows_with_metadata(server: ApiServer, five: str) -> None:
    table = server.send("GET", maps(five), headers=TABLE, labelSelector="test").body
    assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    shown = [(c["name"], c["type"], c["format"], c["priority"]) for c in table["columnDefinitions"]]
    assert shown == [("Name", "string", "name", 0), ("Data", "string", "", 0), ("Age", "string", "", 0)]
    assert [row["cells"][:2] for row in table["rows"]] == [[name, 1] for name in "abcde"]
    assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
    bare = server.send("GET", maps(five), headers=TABLE, includeObject="None").body
    assert "object" not in bare["rows"][0] or bare["rows"][0]["object"] is None


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/nodes",
        "/api/v1/pods",
        "/api/v1/secrets",
        "/api/v1/services",
        "/api/v1/serviceaccounts",
        "/api/v1/events",
        "/api/v1/namespaces",
        "/apis/events.k8s.io/v1/events",
        "/apis/apps/v1/deployments",
        "/apis/apps/v1/replicasets",
        "/apis/apps/v1/statefulsets",
        "/apis/apps/v1/daemonsets",
        "/apis/batch/v1/jobs",
        "/apis/coordination.k8s.io/v1/leases",
        "/apis/rbac.authorization.k8s.io/v1/roles",
        "/apis/rbac.authorization.k8s.io/v1/rolebindings",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        "/apis/resource.k8s.io/v1/deviceclasses",
        "/apis/resource.k8s.io/v1/resourceslices",
        "/apis/resource.k8s.io/v1/resourceclaims",
        "/apis/resource.k8s.io/v1/resourceclaimtemplates",
        "/apis/scheduling.k8s.io/v1/priorityclasses",
        "/apis/storage.k8s.io/v1/storageclasses",
    ],
)
def test_columns_of_the_kinds_are_those_of_kubernetes(server: ApiServer, path: str) -> None:
    definitions = server.send("GET", path, headers=TABLE).body["columnDefinitions"]
    shown = [(c["name"], c["type"], c["format"], c["priority"]) for c in definitions]
    assert shown == COLUMNS[path.rsplit("/", 1)[1]]


def test_metadata_alone_can_be_asked_for(server: ApiServer, five: str) -> None:
    accept = {"Accept": "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"}
    body = server.send("GET", maps(five), headers=accept, labelSelector="test").body
    assert (body["kind"], body["apiVersion"]) == ("PartialObjectMetadataList", "meta.k8s.io/v1")
    assert {frozenset(item) for item in body["items"]} <= {frozenset({"kind", "apiVersion", "metadata"})}
    accept = {"Accept": "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"}
    one = server.send("GET", maps(five) + "/a", headers=accept).body
    assert (one["kind"], set(one)) == ("PartialObjectMetadata", {"kind", "apiVersion", "metadata"})


def test_events_of_both_groups_are_the_same_objects(server: ApiServer, namespace: str) -> None:
    event = {
        "metadata": {"name": "e"},
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": namespace, "apiVersion": "v1"},
        "reason": "Tested",
        "message": "it works",
        "type": "Normal",
        "count": 2,
    }
    server.create(f"/api/v1/namespaces/{namespace}/events", event)
    other = server.get(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events/e").body
    assert (other["apiVersion"], other["note"], other["regarding"]["name"]) == ("events.k8s.io/v1", "it works", "p")
    assert other["deprecatedCount"] == 2
    selected = server.get(f"/api/v1/namespaces/{namespace}/events", fieldSelector="involvedObject.name=p").body
    assert [item["metadata"]["name"] for item in selected["items"]] == ["e"]


def _columns(*plain: str, wide: tuple[str, ...] = ()) -> list[tuple[str, str, str, int]]:
    """Columns as text; a type other than string follows the name after a slash."""
    described = [(*each.partition("/")[::2], 0) for each in plain] + [(*each.partition("/")[::2], 1) for each in wide]
    return [(n, kind or "string", "name" if n == "Name" else "", priority) for n, kind, priority in described]


_POD_TEMPLATE = ("Containers", "Images", "Selector")
_EVENT = [
    ("Last Seen", "string", "", 0),
    ("Type", "string", "", 0),
    ("Reason", "string", "", 0),
    ("Object", "string", "", 0),
    ("Subobject", "string", "", 1),
    ("Source", "string", "", 1),
    ("Message", "string", "", 0),
    ("First Seen", "string", "", 1),
    ("Count", "string", "", 1),
    ("Name", "string", "name", 1),
]
COLUMNS = {
    "namespaces": _columns("Name", "Status", "Age"),
    "nodes": _columns(
        "Name",
        "Status",
        "Roles",
        "Age",
        "Version",
        wide=("Internal-IP", "External-IP", "OS-Image", "Kernel-Version", "Container-Runtime"),
    ),
    "pods": _columns(
        "Name", "Ready", "Status", "Restarts", "Age", wide=("IP", "Node", "Nominated Node", "Readiness Gates")
    ),
    "secrets": _columns("Name", "Type", "Data", "Age"),
    "services": _columns("Name", "Type", "Cluster-IP", "External-IP", "Port(s)", "Age", wide=("Selector",)),
    "serviceaccounts": _columns("Name", "Age"),
    "events": _EVENT,
    "deployments": _columns("Name", "Ready", "Up-to-date", "Available", "Age", wide=_POD_TEMPLATE),
    "replicasets": _columns("Name", "Desired/integer", "Current/integer", "Ready/integer", "Age", wide=_POD_TEMPLATE),
    "statefulsets": _columns("Name", "Ready", "Age", wide=_POD_TEMPLATE[:2]),
    "daemonsets": _columns(
        "Name",
        "Desired/integer",
        "Current/integer",
        "Ready/integer",
        "Up-to-date/integer",
        "Available/integer",
        "Node Selector",
        "Age",
        wide=_POD_TEMPLATE,
    ),
    "jobs": _columns("Name", "Status", "Completions", "Duration", "Age", wide=_POD_TEMPLATE),
    "leases": _columns("Name", "Holder", "Age"),
    "roles": _columns("Name", "Created At/date"),
    "rolebindings": _columns("Name", "Role", "Age", wide=("Users", "Groups", "ServiceAccounts")),
    "customresourcedefinitions": _columns(
        "Name", "Scope", "Versions", "Created At/date", wide=("Group", "Kind", "ShortNames", "Established/boolean")
    ),
    "deviceclasses": _columns("Name", "Age"),
    "resourceslices": _columns("Name", "Node", "Driver", "Pool", "Age"),
    "resourceclaims": _columns("Name", "State", "Age"),
    "resourceclaimtemplates": _columns("Name", "Age"),
    "priorityclasses": _columns("Name", "Value/integer", "Global-Default/boolean", "Age", "PreemptionPolicy"),
    "storageclasses": _columns(
        "Name", "Provisioner", "ReclaimPolicy", "VolumeBindingMode", "AllowVolumeExpansion", "Age"
    ),
}
