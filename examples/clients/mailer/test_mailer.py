"""The mailer against a server whose clock the test moves."""

import smtplib
from datetime import datetime, timezone

import mailer
import pytest

from tidegate.testing import DevServer


@pytest.fixture
def outbox(monkeypatch):
    """Collects what would be sent, and refuses two addresses."""
    sent = []

    def deliver(mail, message_id):
        if mail.to == "unknown@example.com":
            raise smtplib.SMTPRecipientsRefused({mail.to: (550, b"no such user")})
        if mail.to == "away@example.com" and not sent:
            raise smtplib.SMTPServerDisconnected
        sent.append(mail.to)

    monkeypatch.setattr(mailer, "deliver", deliver)
    return sent


def mail_to(address):
    return mailer.Mail(address, "Your order", "Thank you!")


def test_mails_keep_the_rate_and_the_window(outbox):
    with DevServer() as server:
        server.freeze()
        server.set_time(datetime(2040, 1, 2, 3, 0, tzinfo=timezone.utc))
        server.apply(mailer.worker)
        client = server.client
        for number in range(8):
            client.enqueue("receipt", mail_to(f"{number}@example.com"))
        client.enqueue("newsletter", mail_to("reader@example.com"))
        assert len(server.drain(mailer.worker)) == 5  # five a second
        server.advance(1)
        assert len(server.drain(mailer.worker)) == 3  # at night no newsletter
        server.set_time(datetime(2040, 1, 2, 7, 0, tzinfo=timezone.utc))
        assert [run.type for run in server.drain(mailer.worker)] == ["newsletter"]
        assert len(outbox) == 9


def test_a_wrong_address_fails_and_an_outage_waits(outbox):
    with DevServer() as server:
        server.freeze()
        server.apply(mailer.worker)
        server.client.enqueue("receipt", mail_to("unknown@example.com"), id="wrong")
        server.client.enqueue("receipt", mail_to("away@example.com"), id="away")
        statuses = {run.id: run.status for run in server.drain(mailer.worker)}
        assert statuses == {"wrong": "failed", "away": "snoozed"}
        assert server.client.job("wrong").state == "failed"
        outbox.append("another one")
        server.advance(60)
        assert [run.status for run in server.drain(mailer.worker)] == ["succeeded"]
