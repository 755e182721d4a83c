"""``scavenger webhook``: addresses that are told of events, and what was sent there."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer
from rich.console import Group, RenderableType

from scavenger.cli.errors import ReceiverRefused
from scavenger.cli.options import OutputOption
from scavenger.cli.output import (
    UNKNOWN_VALUE,
    Cell,
    OutputFormat,
    ResponsiveTable,
    Terminal,
    get_terminal,
    long_name_column,
    number_column,
    plain_text,
    render_facts,
    text_column,
    word_column,
)
from scavenger.client.client import Client
from scavenger.schemas.webhooks import (
    DeliveryList,
    DeliveryState,
    DeliveryView,
    EventKind,
    WebhookKind,
    WebhookList,
    WebhookView,
)

TEST_LOOK_INTERVAL, TEST_LOOKS = 0.5, 60

WebhookArgument = Annotated[
    str, typer.Argument(metavar="ID", help="Webhook id (scavenger webhook list).")
]
DeliveryArgument = Annotated[
    int, typer.Argument(metavar="NUMBER", min=1, help="Delivery (scavenger webhook show).")
]
AddressArgument = Annotated[
    str, typer.Argument(metavar="ADDRESS", help="Address on the public internet.")
]
EventsOption = Annotated[
    list[EventKind] | None,
    typer.Option("--event", help="Kind of event; again for others, '*' for all.", metavar="KIND"),
]
SlackOption = Annotated[bool, typer.Option("--slack", help="It is an incoming webhook of Slack.")]
WebhookProjectOption = Annotated[
    str | None, typer.Option("--project", help="Project; '*' for all.")
]

webhook_commands = typer.Typer(no_args_is_help=True, help="Manage webhooks.")


@webhook_commands.callback()
def root() -> None:
    """Manage webhooks: addresses that are told of events."""


@webhook_commands.command(
    epilog="Example: scavenger webhook create https://example.org/hook --event failed"
)
def create(
    context: typer.Context,
    address: AddressArgument,
    events: EventsOption = None,
    slack: SlackOption = False,
    project: WebhookProjectOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Create a webhook. Its secret is written to standard output now, and never shown again."""
    terminal = get_terminal(context)
    kind = WebhookKind.SLACK if slack else WebhookKind.GENERIC
    with terminal.connect() as client:
        made = client.create_webhook(address, kind, events, project)
    print_with_secret(terminal, made, output)
    terminal.print_message(f"to try it: scavenger webhook test {made.id}")


@webhook_commands.command("list", epilog="Example: scavenger webhook list -o json")
def list_webhooks(context: typer.Context, output: OutputOption = OutputFormat.TABLE) -> None:
    """List webhooks, without their secrets."""
    terminal = get_terminal(context)
    with terminal.connect() as client:
        found = WebhookList(webhooks=list(client.webhooks()))
    if found.webhooks or output is not OutputFormat.TABLE:
        terminal.print_result(found, output, render_webhooks(found))
    if not found.webhooks:
        terminal.print_message("No webhooks yet. Next: scavenger webhook create ADDRESS")


@webhook_commands.command(epilog="Example: scavenger webhook show whk_0123456789abcdef")
def show(
    context: typer.Context, webhook: WebhookArgument, output: OutputOption = OutputFormat.TABLE
) -> None:
    """Show a webhook and its newest deliveries; to programs, the deliveries."""
    terminal = get_terminal(context)
    with terminal.connect() as client:
        found = client.get_webhook(webhook)
        sent = client.list_deliveries(webhook)
    terminal.print_result(sent, output, Group(render_webhook(found), render_deliveries(sent)))


@webhook_commands.command("test", epilog="Example: scavenger webhook test whk_0123456789abcdef")
def send_test(
    context: typer.Context, webhook: WebhookArgument, output: OutputOption = OutputFormat.TABLE
) -> None:
    """Send a test, and wait for what the receiver answers."""
    terminal = get_terminal(context)
    with terminal.connect() as client:
        delivery = wait_for_test(terminal, client, client.test_webhook(webhook))
    terminal.print_result(delivery, output, render_deliveries(DeliveryList(deliveries=[delivery])))
    if delivery.state is not DeliveryState.DELIVERED:
        raise ReceiverRefused(webhook, delivery.told or "the controller has not sent it yet")


@webhook_commands.command(epilog="Example: scavenger webhook replay whk_0123456789abcdef 42")
def replay(
    context: typer.Context,
    webhook: WebhookArgument,
    number: DeliveryArgument,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Send an event once more."""
    terminal = get_terminal(context)
    with terminal.connect() as client:
        delivery = client.replay_delivery(webhook, number)
    terminal.print_result(delivery, output, render_deliveries(DeliveryList(deliveries=[delivery])))


@webhook_commands.command(epilog="Example: scavenger webhook rotate whk_0123456789abcdef")
def rotate(
    context: typer.Context, webhook: WebhookArgument, output: OutputOption = OutputFormat.TABLE
) -> None:
    """Replace the secret. For 24 hours the old one signs, too."""
    terminal = get_terminal(context)
    with terminal.connect() as client:
        rotated = client.rotate_webhook(webhook)
    print_with_secret(terminal, rotated, output)


@webhook_commands.command(epilog="Example: scavenger webhook enable whk_0123456789abcdef")
def enable(
    context: typer.Context, webhook: WebhookArgument, output: OutputOption = OutputFormat.TABLE
) -> None:
    """Send events from now on."""
    change_webhook(context, webhook, output, is_enabled=True)


@webhook_commands.command(epilog="Example: scavenger webhook disable whk_0123456789abcdef")
def disable(
    context: typer.Context, webhook: WebhookArgument, output: OutputOption = OutputFormat.TABLE
) -> None:
    """Send no events until it is enabled again."""
    change_webhook(context, webhook, output, is_enabled=False)


@webhook_commands.command(epilog="Example: scavenger webhook delete whk_0123456789abcdef")
def delete(context: typer.Context, webhook: WebhookArgument) -> None:
    """Delete a webhook and the record of its deliveries."""
    terminal = get_terminal(context)
    with terminal.connect() as client:
        deleted = client.delete_webhook(webhook)
    terminal.print_message(f"{deleted.id} is deleted: {deleted.url} hears of nothing any more")


def change_webhook(
    context: typer.Context, webhook: str, output: OutputFormat, *, is_enabled: bool
) -> None:
    """Switch a webhook on or off, and show it."""
    terminal = get_terminal(context)
    with terminal.connect() as client:
        changed = client.change_webhook(webhook, {"is_enabled": is_enabled})
    terminal.print_result(changed, output, render_webhooks(WebhookList(webhooks=[changed])))


def print_with_secret(terminal: Terminal, webhook: WebhookView, output: OutputFormat) -> None:
    """Print the secret of a webhook, and what to do with it; or its id where it has none."""
    table = plain_text(webhook.id if webhook.secret is None else webhook.secret)
    terminal.print_result(webhook, output, table)
    if webhook.secret is not None and output is OutputFormat.TABLE:
        terminal.print_message(
            f"{webhook.id} signs with this secret. Keep it: no command shows it again."
        )


def wait_for_test(terminal: Terminal, client: Client, delivery: DeliveryView) -> DeliveryView:
    """Return a delivery once it is over, or after half a minute as it is then."""
    for _ in range(TEST_LOOKS):
        if delivery.state is not DeliveryState.WAITING:
            break
        terminal.pause(TEST_LOOK_INTERVAL)
        newest = client.list_deliveries(delivery.webhook).deliveries
        delivery = next((one for one in newest if one.number == delivery.number), delivery)
    return delivery


WEBHOOK_COLUMNS = (
    word_column("ID"),
    long_name_column("ADDRESS"),
    word_column("KIND", 3),
    text_column("PROJECT", 4),
    text_column("EVENTS", 2),
    text_column("STATE", 1),
)
DELIVERY_COLUMNS = (
    number_column("NUMBER"),
    word_column("EVENT"),
    word_column("STATE"),
    number_column("TRIES", 1),
    word_column("SINCE (UTC)", 3),
    word_column("NEXT TRY (UTC)", 2),
    text_column("WHAT WAS WRONG", 1),
    word_column("JOB", 4),
)


def render_webhooks(webhooks: WebhookList) -> RenderableType:
    """Render a table of webhooks."""
    return ResponsiveTable(WEBHOOK_COLUMNS, [_webhook_row(each) for each in webhooks.webhooks])


def _webhook_row(webhook: WebhookView) -> tuple[Cell, ...]:
    facts = (webhook.id, webhook.url, webhook.kind.value, webhook.project)
    return (*map(plain_text, facts), ", ".join(webhook.events), state_of(webhook))


def state_of(webhook: WebhookView) -> str:
    """Say whether events are sent, and else why not."""
    return "● on" if webhook.is_enabled else f"○ off: {webhook.disabled_why}"


def render_webhook(webhook: WebhookView) -> RenderableType:
    """Render the facts of one webhook."""
    facts = [
        ("Address", webhook.url),
        ("Kind", webhook.kind.value),
        ("Project", webhook.project),
        ("Events", ", ".join(webhook.events)),
        ("State", state_of(webhook)),
        ("Secret", f"replaced {webhook.rotations} times"),
    ]
    return Group(plain_text(webhook.id, "bold"), render_facts(facts))


def render_deliveries(deliveries: DeliveryList) -> RenderableType:
    """Render a table of deliveries."""
    rows = [_delivery_row(each) for each in deliveries.deliveries]
    return ResponsiveTable(DELIVERY_COLUMNS, rows)


def _delivery_row(delivery: DeliveryView) -> tuple[Cell, ...]:
    return (
        str(delivery.number),
        plain_text(delivery.kind or "test"),
        delivery.state.value,
        str(delivery.attempts),
        _moment(delivery.created_at),
        _moment(delivery.next_try_at),
        plain_text(delivery.told or UNKNOWN_VALUE),
        plain_text(delivery.job or UNKNOWN_VALUE),
    )


def _moment(moment: datetime | None) -> str:
    return UNKNOWN_VALUE if moment is None else f"{moment:%Y-%m-%d %H:%M}"
