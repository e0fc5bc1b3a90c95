"""Checks of packaging/bucket and of its pages, in reading order:

    program   what the server is: settings, flags, image, health routes
    files     packaging/bucket read into one form, `Server`, whatever the platform
    fields    the fields that Cloud Run and Fly.io know
    container_app   the fields and values that Container Apps know
    agrees    what every server must agree on with the program
    leaders   what each platform must be told so that one server leads
    pages     the quotations, rights and names in the pages of docs/
    faults    planted faults, each of which one of these must find
"""


class Fault(AssertionError):
    """What is wrong, with the file in which it is."""


def want(condition, what):
    """Fails with `what` unless the condition holds."""
    if not condition:
        raise Fault(what)
