//! Reports the state of the server to the service manager that started it, if one did.
//!
//! A systemd unit with `Type=notify` names a socket in `NOTIFY_SOCKET`. Units that depend on this one
//! start when the server is ready, not when its process exists.

use std::net::SocketAddr;

use sd_notify::NotifyState;

/// Reports that requests are served on `address`.
pub(super) fn ready(address: SocketAddr) {
    let status = format!("serves on http://{address}");
    report(&[NotifyState::Ready, NotifyState::Status(&status)]);
}

/// Reports that the server has begun to stop.
pub(super) fn stopping() {
    report(&[NotifyState::Stopping, NotifyState::Status("finishes responses in progress")]);
}

/// Sends `state`. Without a service manager this does nothing.
fn report(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "the service manager was not notified");
    }
}
