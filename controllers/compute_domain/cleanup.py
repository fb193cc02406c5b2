"""Takes back single objects that are ours, and never anything else."""

from controllers.api import nvidia
from controllers.api.core import Node
from controllers.api.dra import ResourceClaimTemplate
from controllers.api.nvidia import ComputeDomainClique
from controllers.compute_domain.ownership import Ownership
from controllers.runtime import Client, KubeObject
from controllers.runtime.errors import ObjectGone


class Cleanup:
    """Each method looks at who wrote the object first, and says nothing where it is gone already."""

    def __init__(self, client: Client, ownership: Ownership) -> None:
        self._client = client
        self._ownership = ownership

    async def remove(self, leftover: KubeObject) -> None:
        """Whichever of the three it is."""
        match leftover:
            case Node():
                await self.remove_label(leftover)
            case ComputeDomainClique():
                await self.delete_clique(leftover)
            case ResourceClaimTemplate():
                await self.delete_template(leftover)

    async def remove_label(self, node: Node) -> None:
        """Takes the domain label off a node. Raises Conflict where the node changed since it was observed."""
        if not await self._ownership.wrote_label(node):
            return
        # Without the observed resourceVersion a late removal could hit the label that the next domain has written
        # under the same field manager.
        guard = {"resourceVersion": node.metadata.resource_version}
        try:
            await self._client.apply(node, {"metadata": guard})
        except ObjectGone:
            return
        self._ownership.forget(node)

    async def delete_clique(self, clique: ComputeDomainClique) -> None:
        if await self._ownership.wrote_clique(clique):
            await self._client.delete(clique)

    async def delete_template(self, template: ResourceClaimTemplate) -> None:
        """Deletes a template. Its finalizer goes first, since a terminating template still hands out claims."""
        if not await self._ownership.wrote_template(template):
            return
        left = await self._client.remove_finalizer(template, nvidia.DOMAIN_KEY)
        if left is not None and not template.deleting:
            await self._client.delete(left)
