//! The bounds of memories and tables.

use wasmtime::ResourceLimiter;

use super::denied;
use crate::wasm::bounds;
use tidegate_core::port::policy::FaultKind;

/// Enforces the bounds of memories and tables.
#[derive(Default)]
pub(in crate::wasm) struct Limiter {
    /// Bytes of all memories, without what is reserved for global variables.
    pub memory: usize,
}

impl ResourceLimiter for Limiter {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _: Option<usize>,
    ) -> wasmtime::Result<bool> {
        // A component may have several memories, and each one calls this.
        let sum = self.memory - current + desired;
        if sum > bounds::MEMORY - bounds::GLOBALS {
            return Err(denied(
                FaultKind::ResourceExhausted,
                format!("requested more than {} MiB of memory", bounds::MEMORY >> 20),
            ));
        }
        self.memory = sum;
        Ok(true)
    }

    fn table_growing(
        &mut self,
        _: usize,
        desired: usize,
        _: Option<usize>,
    ) -> wasmtime::Result<bool> {
        if desired > bounds::TABLE {
            return Err(denied(
                FaultKind::ResourceExhausted,
                format!("requested a table of more than {} elements", bounds::TABLE),
            ));
        }
        Ok(true)
    }

    // A component made from Python has 38 modules.
    fn instances(&self) -> usize {
        64
    }

    fn tables(&self) -> usize {
        16
    }

    fn memories(&self) -> usize {
        4
    }
}
