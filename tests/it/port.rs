//! Ports of servers that a test starts, and starts again: nothing else gets them in between.

use std::net::TcpListener;

/// A port of 127.0.0.1 on which nothing listens. As long as this value lives, no other test gets it.
pub struct Port {
    pub number: u16,
    /// Listens on the port before: that claims both, in all processes.
    _claim: TcpListener,
}

impl Port {
    /// It is below those that systems give to outgoing connections: one of these could take the port of a
    /// server while it restarts.
    pub fn new() -> Self {
        loop {
            let before = 2 * rand::random_range(5_000..16_000_u16);
            let number = before + 1;
            let Ok(claim) = TcpListener::bind(("127.0.0.1", before)) else { continue };
            if TcpListener::bind(("127.0.0.1", number)).is_ok() {
                return Self { number, _claim: claim };
            }
        }
    }

    /// Where a server listens.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.number)
    }
}
