"""A shop's mailer: five e-mails a second, three at once, newsletters by day only.

    python mailer.py            works until SIGTERM
"""

import os
import smtplib
from dataclasses import dataclass
from email.message import EmailMessage

from tidegate import Client, PermanentError, Snooze, Worker

DAYTIME = {"from": "08:00", "to": "20:00", "tz": "Europe/Berlin"}
PROVIDER = {"name": "provider", "rate": {"count": 5, "per_seconds": 1}}
RETRY = {"strategy": "exponential", "config": {"base_seconds": 10, "max_seconds": 3600}}


@dataclass
class Mail:
    to: str
    subject: str
    text: str


worker = Worker(Client())
worker.config.queue("mail", concurrency=3, constraints=[PROVIDER])


def deliver(mail: Mail, message_id: str) -> None:
    message = EmailMessage()
    message["To"], message["Subject"], message["From"] = mail.to, mail.subject, "shop@example.com"
    message["Message-ID"] = f"<{message_id}@example.com>"
    message.set_content(mail.text)
    with smtplib.SMTP(os.environ.get("SMTP_HOST", "localhost"), timeout=20) as server:
        server.send_message(message)


@worker("receipt", concurrency=3, queue="mail", config={"max_attempts": 6, "retry": RETRY})
def receipt(mail: Mail, job) -> None:
    send(mail, job)


@worker("newsletter", queue="mail", config={"priority": 200, "windows": [DAYTIME]})
def newsletter(mail: Mail, job) -> None:
    send(mail, job)


def send(mail: Mail, job) -> None:
    try:
        deliver(mail, job.id)  # a repeat has the same Message-ID
    except smtplib.SMTPRecipientsRefused as refused:
        raise PermanentError(f"no such address: {mail.to}") from refused
    except smtplib.SMTPServerDisconnected:
        raise Snooze(60, "the mail server is away") from None


if __name__ == "__main__":
    print(worker.apply())
    worker.run()
