//! What happens to the requests at an address of the store: they are refused, or PUTs arrive late.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

/// The faults of an address. It has none at first.
#[derive(Default)]
pub struct Faults {
    is_out: AtomicBool,
    late: watch::Sender<Late>,
}

/// PUTs that arrive after their clients may have given up.
#[derive(Default)]
struct Late {
    /// What the names of their objects have in them.
    part: String,
    /// How many more are to be held back.
    left: usize,
    /// The objects of those that are.
    held: Vec<String>,
    /// How often they were released.
    releases: u64,
    /// How many have arrived since the last release.
    arrived: usize,
}

impl Faults {
    /// Sets whether every request is refused.
    pub fn set_out(&self, is_out: bool) {
        self.is_out.store(is_out, Ordering::Relaxed);
    }

    /// Whether every request is refused.
    pub fn is_out(&self) -> bool {
        self.is_out.load(Ordering::Relaxed)
    }

    /// Holds back the next `most` PUTs of objects that have `part` in their names.
    pub fn hold_next(&self, part: &str, most: usize) {
        self.late.send_modify(|late| {
            part.clone_into(&mut late.part);
            late.left = most;
        });
    }

    /// The objects of the PUTs that are held back.
    pub fn held(&self) -> Vec<String> {
        self.late.borrow().held.clone()
    }

    /// Whether a PUT of this object is held back: then the number of releases before it.
    pub fn hold(&self, name: &str) -> Option<u64> {
        let mut releases = None;
        self.late.send_modify(|late| {
            if late.left > 0 && name.contains(&late.part) {
                late.left -= 1;
                late.held.push(name.to_owned());
                releases = Some(late.releases);
            }
        });
        releases
    }

    /// Waits until the PUTs are released that were held back after `releases`.
    pub async fn released(&self, releases: u64) {
        let mut late = self.late.subscribe();
        late.wait_for(|late| late.releases > releases).await.unwrap();
    }

    /// Notes that a PUT has arrived that was held back.
    pub fn note_arrival(&self) {
        self.late.send_modify(|late| late.arrived += 1);
    }

    /// Releases the PUTs that are held back, and holds back no more. Returns after they have arrived.
    pub async fn release(&self) {
        let mut released = 0;
        self.late.send_modify(|late| {
            released = std::mem::take(&mut late.held).len();
            (late.left, late.arrived) = (0, 0);
            late.releases += 1;
        });
        let mut late = self.late.subscribe();
        late.wait_for(|late| late.arrived >= released).await.unwrap();
    }
}
