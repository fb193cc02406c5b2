"""A complete controller: each namespace with the label `team` gets a ConfigMap `team` that names the team."""

import sys
from collections.abc import Mapping
from typing import ClassVar

from controllers.api.core import Namespace
from controllers.runtime import Client, Key, KubeObject, Manager, Resource, owner_reference
from controllers.runtime.cache import Reader
from controllers.runtime.entrypoint import run
from controllers.runtime.options import manager_options, parser_for
from controllers.runtime.rbac import Declaration, permissions
from controllers.runtime.reconcile import DONE, Request, Result


class ConfigMap(KubeObject, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource("", "v1", "configmaps", "ConfigMap", namespaced=True)

    data: Mapping[str, str] = {}


DECLARATION = Declaration(
    name="team-configmap",
    cluster=permissions(Namespace, "list", "watch") | permissions(ConfigMap, "list", "watch", "create", "patch"),
)


class TeamReconciler:
    def __init__(self, client: Client, namespaces: Reader[Namespace], maps: Reader[ConfigMap]) -> None:
        self._client, self._namespaces, self._maps = client, namespaces, maps

    async def reconcile(self, request: Request) -> Result:
        namespace = self._namespaces.get(request)
        if namespace is None or namespace.deleting or "team" not in namespace.metadata.labels:
            return DONE
        desired = {"team": namespace.metadata.labels["team"]}
        present = self._maps.get(Key(namespace.name, "team"))
        if present is None or present.data != desired:
            metadata = {"name": "team", "namespace": namespace.name, "ownerReferences": [owner_reference(namespace)]}
            await self._client.apply_owned(ConfigMap, {"metadata": metadata, "data": desired})
        return DONE


def setup(manager: Manager) -> None:
    reconciler = TeamReconciler(manager.client_for(DECLARATION), manager.reader(Namespace), manager.reader(ConfigMap))
    manager.controller(DECLARATION.name).for_(Namespace).owns(ConfigMap).reconciles_with(reconciler)


if __name__ == "__main__":
    parser = parser_for(DECLARATION.name, "Keeps a ConfigMap with the team of each labelled namespace.")
    sys.exit(run(DECLARATION.name, setup, manager_options(parser.parse_args())))
