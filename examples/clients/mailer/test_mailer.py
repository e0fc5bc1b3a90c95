"""The mailer against a server whose clock the test moves."""

import os
import pathlib
import signal
import smtplib
import subprocess
import sys
from datetime import datetime, timezone

import mailer
import pytest

from tidegate.testing import DevServer, wait_until


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


def test_the_program_works_until_sigterm():
    with DevServer() as server:
        own = {"TIDEGATE_URL": server.url, "TIDEGATE_TOKEN": "", "SMTP_HOST": "nowhere.invalid"}
        with subprocess.Popen(
            [sys.executable, str(pathlib.Path(mailer.__file__))],
            env=os.environ | own,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                wait_until(lambda: list(server.client.pages("/v1/workers", "workers")), 20)
                job = server.client.enqueue("receipt", mail_to("ann@example.com"))
                wait_until(lambda: job.refresh().phase == "retrying", 20)
                assert "gaierror" in job.refresh().raw["error"]["message"]
                process.send_signal(signal.SIGTERM)
                assert process.wait(20) == 0
                assert "+ queue mail" in process.stdout.read()
            finally:
                process.kill()
