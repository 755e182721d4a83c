"""The client's methods about webhooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import quote

from scavenger.client.core import MAX_PAGE_SIZE, ApiRequest, Listing, get, iterate_items, post
from scavenger.client.methods import listing, one_request
from scavenger.schemas.webhooks import (
    DeliveryList,
    DeliveryView,
    EventKind,
    WebhookKind,
    WebhookList,
    WebhookView,
)


class WebhookMethods:
    """Create, change and delete webhooks, and see what was sent to them."""

    @one_request
    def create_webhook(
        self,
        url: str,
        kind: WebhookKind = WebhookKind.GENERIC,
        events: Sequence[EventKind] | None = None,
        project: str | None = None,
    ) -> ApiRequest[WebhookView]:
        """Create a webhook; without events it hears of those that a person wants to know of.

        This answer and those of rotations are the only ones with its secret.
        """
        wish = {"url": url, "kind": kind, "events": events, "project": project}
        return post(WebhookView, "/v1/webhooks", wish)

    @listing
    def webhooks(self) -> Listing[WebhookView]:
        """Yield the webhooks of the project, newest first."""
        request = get(WebhookList, "/v1/webhooks", {"limit": MAX_PAGE_SIZE})
        return iterate_items(request, lambda page: page.webhooks)

    @one_request
    def get_webhook(self, webhook: str) -> ApiRequest[WebhookView]:
        """Return one webhook."""
        return get(WebhookView, webhook_path(webhook))

    @one_request
    def change_webhook(
        self, webhook: str, changes: Mapping[str, object]
    ) -> ApiRequest[WebhookView]:
        """Change ``url``, ``events`` or ``is_enabled`` of a webhook."""
        return post(WebhookView, webhook_path(webhook), dict(changes), method="PATCH")

    @one_request
    def rotate_webhook(self, webhook: str) -> ApiRequest[WebhookView]:
        """Replace the secret of a webhook; for a day, the one before signs as well."""
        return post(WebhookView, f"{webhook_path(webhook)}/actions/rotate")

    @one_request
    def delete_webhook(self, webhook: str) -> ApiRequest[WebhookView]:
        """Delete a webhook with all its deliveries."""
        return post(WebhookView, webhook_path(webhook), method="DELETE")

    @one_request
    def test_webhook(self, webhook: str) -> ApiRequest[DeliveryView]:
        """Send a test; the delivery tells later what became of it."""
        return post(DeliveryView, f"{webhook_path(webhook)}/actions/test")

    @one_request
    def list_deliveries(self, webhook: str, limit: int = 20) -> ApiRequest[DeliveryList]:
        """Return the newest deliveries of a webhook."""
        return get(DeliveryList, f"{webhook_path(webhook)}/deliveries", {"limit": limit})

    @one_request
    def replay_delivery(self, webhook: str, number: int) -> ApiRequest[DeliveryView]:
        """Send the event of a delivery once more, under the same id."""
        path = f"{webhook_path(webhook)}/deliveries/{number}/actions/replay"
        return post(DeliveryView, path)


def webhook_path(webhook: str) -> str:
    """Return the path of a webhook; an id with slashes cannot lead elsewhere."""
    return f"/v1/webhooks/{quote(webhook, safe='')}"
