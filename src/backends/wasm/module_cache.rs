//! The compiled plugins of this process: fetched once, held while they are used.

use std::{future::Future, sync::Arc};

use object_store::{ObjectStore, ObjectStoreExt, path::Path};
use parking_lot::Mutex;

use crate::wasm::runtime::{ENGINE, Loaded, Runtime, TARGET};
use tidegate_core::port::policy::{Fault, FaultKind, Plugin};

/// Most plugins that are held at once.
const HELD: usize = 64;
/// Most bytes of their code; one that is larger is held alone.
const HELD_BYTES: usize = 512 << 20;

/// The object that the component with this hash is kept as.
pub fn component_object(sha256: &str) -> Path {
    Path::from(format!("plugins/{sha256}.wasm"))
}

/// The object that the compiled code with this hash is kept as.
pub fn code_object(sha256: &str) -> Path {
    Path::from(format!("plugins/{sha256}.cwasm"))
}

/// Compiled plugins by the hash of their code, which never changes; those that were not asked for longest go first.
pub(super) struct Shelf {
    objects: Arc<dyn ObjectStore>,
    held: Mutex<Vec<(String, Arc<Loaded>)>>,
}

impl Shelf {
    pub(super) fn new(objects: Arc<dyn ObjectStore>) -> Self {
        Self { objects, held: Mutex::default() }
    }

    /// The plugin, ready to be called. `run` runs what takes a while.
    pub(super) async fn get<F, R>(
        &self,
        machine: &Arc<Runtime>,
        plugin: &Plugin,
        run: F,
    ) -> Result<Arc<Loaded>, Fault>
    where
        F: FnOnce(Box<dyn FnOnce() -> Result<Loaded, Fault> + Send>) -> R,
        R: Future<Output = Result<Loaded, Fault>>,
    {
        let unavailable = |message: String| Fault { kind: FaultKind::Unavailable, message };
        let compiled = plugin
            .version
            .compiled
            .iter()
            .find(|compiled| compiled.target == TARGET && compiled.engine == ENGINE);
        let compiled = compiled.ok_or_else(|| {
            unavailable(format!(
                "it is not compiled for this program ({TARGET}, {ENGINE}); push it again"
            ))
        })?;
        if let Some(loaded) = self.held(&compiled.sha256) {
            return Ok(loaded);
        }
        let fetched =
            async { self.objects.get(&code_object(&compiled.sha256)).await?.bytes().await };
        let code = fetched
            .await
            .map_err(|error| unavailable(format!("its compiled code cannot be read: {error}")))?;
        let (machine, sha256) = (Arc::clone(machine), compiled.sha256.clone());
        let loaded = Arc::new(run(Box::new(move || machine.load(&code, &sha256))).await?);
        self.hold(&compiled.sha256, &loaded);
        Ok(loaded)
    }

    fn held(&self, sha256: &str) -> Option<Arc<Loaded>> {
        let mut held = self.held.lock();
        let at = held.iter().position(|(of, _)| of == sha256)?;
        let last = held.len() - 1;
        held[at..].rotate_left(1);
        Some(Arc::clone(&held[last].1))
    }

    fn hold(&self, sha256: &str, loaded: &Arc<Loaded>) {
        let mut held = self.held.lock();
        // Two calls may have fetched it at once.
        held.retain(|(of, _)| of != sha256);
        held.push((sha256.to_owned(), Arc::clone(loaded)));
        let bytes = |held: &[(String, Arc<Loaded>)]| {
            held.iter().map(|(_, loaded)| loaded.bytes).sum::<usize>()
        };
        while held.len() > 1 && (held.len() > HELD || bytes(&held) > HELD_BYTES) {
            held.remove(0);
        }
    }
}
