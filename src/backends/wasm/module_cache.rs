//! The compiled plugins of this process: fetched once, and cached while they are used.

use std::{future::Future, sync::Arc};

use object_store::{ObjectStore, ObjectStoreExt, path::Path};
use parking_lot::Mutex;

use crate::wasm::runtime::{ENGINE, Loaded, Runtime, TARGET};
use tidegate_core::{
    error_chain::ErrorChain,
    port::policy::{Fault, FaultKind, Plugin},
};

/// Maximum cached plugins.
const MAX_CACHED: usize = 64;
/// Maximum bytes of cached code. A larger plugin is cached alone.
const MAX_CACHED_BYTES: usize = 512 << 20;

/// The object with the component of this hash.
pub(crate) fn component_object(sha256: &str) -> Path {
    Path::from(format!("plugins/{sha256}.wasm"))
}

/// The object with the compiled code of this hash.
pub fn code_object(sha256: &str) -> Path {
    Path::from(format!("plugins/{sha256}.cwasm"))
}

/// Compiled plugins by the hash of their code. The least recently used one is evicted first.
pub(super) struct ModuleCache {
    objects: Arc<dyn ObjectStore>,
    modules: Mutex<Vec<(String, Arc<Loaded>)>>,
}

impl ModuleCache {
    pub(super) fn new(objects: Arc<dyn ObjectStore>) -> Self {
        Self { objects, modules: Mutex::default() }
    }

    /// The plugin, ready to be called. `run` executes the slow part.
    pub(super) async fn get<F, R>(
        &self,
        runtime: &Arc<Runtime>,
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
        if let Some(loaded) = self.cached(&compiled.sha256) {
            return Ok(loaded);
        }
        let fetched =
            async { self.objects.get(&code_object(&compiled.sha256)).await?.bytes().await };
        let code = fetched.await.map_err(|error| {
            unavailable(format!("its compiled code cannot be read: {}", ErrorChain(&error)))
        })?;
        let (runtime, sha256) = (Arc::clone(runtime), compiled.sha256.clone());
        let loaded = Arc::new(run(Box::new(move || runtime.load(&code, &sha256))).await?);
        self.insert(&compiled.sha256, &loaded);
        Ok(loaded)
    }

    fn cached(&self, sha256: &str) -> Option<Arc<Loaded>> {
        let mut modules = self.modules.lock();
        let at = modules.iter().position(|(of, _)| of == sha256)?;
        let last = modules.len() - 1;
        modules[at..].rotate_left(1);
        Some(Arc::clone(&modules[last].1))
    }

    fn insert(&self, sha256: &str, loaded: &Arc<Loaded>) {
        let mut modules = self.modules.lock();
        // Two concurrent calls may have fetched it.
        modules.retain(|(of, _)| of != sha256);
        modules.push((sha256.to_owned(), Arc::clone(loaded)));
        let bytes = |modules: &[(String, Arc<Loaded>)]| {
            modules.iter().map(|(_, loaded)| loaded.bytes).sum::<usize>()
        };
        while modules.len() > 1
            && (modules.len() > MAX_CACHED || bytes(&modules) > MAX_CACHED_BYTES)
        {
            modules.remove(0);
        }
    }
}
