//! What one instantiation of a component makes: the instances of all components and core modules
//! within it.
//!
//! An inner component is instantiated any number of times, and may itself instantiate others any
//! number of times. For each of these instances, the engine repeats the definitions of its
//! component before it makes code. So a few hundred bytes can take gigabytes: the bounds here are
//! applied before that.

use wasmparser::{
    ComponentAlias, ComponentExternalKind, ComponentInstance, ComponentOuterAliasKind,
    ComponentTypeRef, Encoding, Instance, Payload,
};

/// Most levels of components and core modules within each other; JavaScript has 4.
pub(super) const MAX_LEVELS: usize = 32;
/// Most instances of components and core modules; Python has 40.
pub(super) const MAX_INSTANCES: u64 = 1000;
/// Most bytes of the definitions of inner components, counted for each of their instances;
/// JavaScript has 37 KB.
pub(super) const MAX_DEFINITION_BYTES: u64 = 1 << 20;
/// Most components, and most core modules, of a component: a bound of the engine.
const MAX_INDEXES: usize = 1000;

/// What one instantiation makes. The numbers saturate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Made {
    /// The instances of components and core modules.
    pub(super) instances: u64,
    /// The bytes of the definitions of the components that are instantiated.
    pub(super) definition_bytes: u64,
    /// The global variables of the core modules that are instantiated.
    globals: u64,
    /// The instances of core modules that come from elsewhere: an import, or an export of another
    /// instance.
    foreign_modules: u64,
    /// Whether a component is instantiated that comes from elsewhere.
    pub(super) has_foreign_components: bool,
}

impl Made {
    /// What the instantiation of a component that comes from elsewhere makes: that is unknown.
    const FOREIGN: Self = Self {
        instances: 0,
        definition_bytes: 0,
        globals: 0,
        foreign_modules: 0,
        has_foreign_components: true,
    };

    fn add(&mut self, other: Self) {
        self.instances = self.instances.saturating_add(other.instances);
        self.definition_bytes = self.definition_bytes.saturating_add(other.definition_bytes);
        self.globals = self.globals.saturating_add(other.globals);
        self.foreign_modules = self.foreign_modules.saturating_add(other.foreign_modules);
        self.has_foreign_components |= other.has_foreign_components;
    }
}

/// A component or a core module whose end is not read yet.
struct Level {
    encoding: Encoding,
    /// The bytes of its own definitions, if it is a component.
    definition_bytes: u64,
    /// Its global variables, if it is a core module.
    globals: u64,
    /// What each of its components makes, by index.
    components: Vec<Made>,
    /// The global variables of each of its core modules, by index. `None`: it comes from elsewhere.
    modules: Vec<Option<u64>>,
    /// What the components and core modules that it instantiates make.
    made: Made,
}

impl Level {
    fn new(encoding: Encoding) -> Self {
        Self {
            encoding,
            definition_bytes: 0,
            globals: 0,
            components: Vec::new(),
            modules: Vec::new(),
            made: Made::default(),
        }
    }

    /// Adds a component. One past the bound of the engine comes from elsewhere.
    fn add_component(&mut self, makes: Made) {
        if self.components.len() < MAX_INDEXES {
            self.components.push(makes);
        }
    }

    /// Adds a core module. One past the bound of the engine comes from elsewhere.
    fn add_module(&mut self, globals: Option<u64>) {
        if self.modules.len() < MAX_INDEXES {
            self.modules.push(globals);
        }
    }

    fn component(&self, index: u32) -> Made {
        self.components.get(index as usize).copied().unwrap_or(Made::FOREIGN)
    }

    fn module(&self, index: u32) -> Option<u64> {
        self.modules.get(index as usize).copied().flatten()
    }

    fn instantiate_component(&mut self, index: u32) {
        self.made.add(self.component(index));
        self.made.instances = self.made.instances.saturating_add(1);
    }

    fn instantiate_module(&mut self, index: u32) {
        let globals = self.module(index);
        self.made.add(Made {
            instances: 1,
            globals: globals.unwrap_or(0),
            foreign_modules: u64::from(globals.is_none()),
            ..Made::default()
        });
    }
}

/// Counts what the outermost component makes, while its parts are read.
#[derive(Default)]
pub(super) struct Instances {
    /// The components and the core module around the next part, outermost first.
    levels: Vec<Level>,
    /// What the outermost component makes, except itself.
    made: Made,
    /// The global variables of the core module that has most.
    most_globals: u64,
}

impl Instances {
    /// The number of components and core modules around the next part.
    pub(super) fn depth(&self) -> usize {
        self.levels.len()
    }

    /// What the outermost component makes, except itself, when all parts are read.
    pub(super) fn made(&self) -> Made {
        self.made
    }

    /// At most how many global variables there are in all instances.
    pub(super) fn globals(&self) -> u64 {
        let foreign = self.made.foreign_modules.saturating_mul(self.most_globals);
        self.made.globals.saturating_add(foreign)
    }

    /// Adds the next part.
    ///
    /// # Errors
    ///
    /// It is malformed.
    pub(super) fn add(&mut self, part: &Payload<'_>) -> wasmparser::Result<()> {
        match part {
            Payload::Version { encoding, .. } => self.levels.push(Level::new(*encoding)),
            Payload::End(_) => self.end_level(),
            _ => {}
        }
        let Some((level, outer)) = self.levels.split_last_mut() else { return Ok(()) };
        match part {
            Payload::ModuleSection { .. }
            | Payload::ComponentSection { .. }
            | Payload::CustomSection(_) => {}
            part if level.encoding == Encoding::Component => {
                let bytes = part.as_section().map_or(0, |(_, range)| range.len() as u64);
                level.definition_bytes = level.definition_bytes.saturating_add(bytes);
            }
            Payload::GlobalSection(section) => level.globals += u64::from(section.count()),
            _ => {}
        }
        match part {
            Payload::ComponentImportSection(section) => {
                for import in section.clone() {
                    match import?.ty {
                        ComponentTypeRef::Module(_) => level.add_module(None),
                        ComponentTypeRef::Component(_) => level.add_component(Made::FOREIGN),
                        _ => {}
                    }
                }
            }
            Payload::ComponentAliasSection(section) => {
                for alias in section.clone() {
                    add_alias(level, outer, &alias?);
                }
            }
            // An export is another name, with its own index.
            Payload::ComponentExportSection(section) => {
                for export in section.clone() {
                    let export = export?;
                    match export.kind {
                        ComponentExternalKind::Module => {
                            level.add_module(level.module(export.index));
                        }
                        ComponentExternalKind::Component => {
                            level.add_component(level.component(export.index));
                        }
                        _ => {}
                    }
                }
            }
            Payload::InstanceSection(section) => {
                for instance in section.clone() {
                    if let Instance::Instantiate { module_index, .. } = instance? {
                        level.instantiate_module(module_index);
                    }
                }
            }
            Payload::ComponentInstanceSection(section) => {
                for instance in section.clone() {
                    if let ComponentInstance::Instantiate { component_index, .. } = instance? {
                        level.instantiate_component(component_index);
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Adds the innermost component or core module to the one around it.
    fn end_level(&mut self) {
        let Some(level) = self.levels.pop() else { return };
        self.most_globals = self.most_globals.max(level.globals);
        match (self.levels.last_mut(), level.encoding) {
            (Some(outer), Encoding::Module) => outer.add_module(Some(level.globals)),
            (Some(outer), Encoding::Component) => {
                let mut makes = level.made;
                makes.definition_bytes =
                    makes.definition_bytes.saturating_add(level.definition_bytes);
                outer.add_component(makes);
            }
            (None, _) => self.made = level.made,
        }
    }
}

/// Adds another name of a component or a core module to `level`, which lies within `outer`.
fn add_alias(level: &mut Level, outer: &[Level], alias: &ComponentAlias<'_>) {
    match alias {
        ComponentAlias::InstanceExport { kind: ComponentExternalKind::Module, .. } => {
            level.add_module(None);
        }
        ComponentAlias::InstanceExport { kind: ComponentExternalKind::Component, .. } => {
            level.add_component(Made::FOREIGN);
        }
        ComponentAlias::Outer { kind, count, index } => {
            // 0 is the component itself.
            let of = match count {
                0 => Some(&*level),
                count => outer.len().checked_sub(*count as usize).map(|place| &outer[place]),
            };
            match kind {
                ComponentOuterAliasKind::CoreModule => {
                    let globals = of.and_then(|of| of.module(*index));
                    level.add_module(globals);
                }
                ComponentOuterAliasKind::Component => {
                    let makes = of.map_or(Made::FOREIGN, |of| of.component(*index));
                    level.add_component(makes);
                }
                _ => {}
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use wasmparser::Parser;

    use super::*;

    /// The count of the parts of a component.
    fn counted(wat: &str) -> Instances {
        let wasm = wat::parse_str(format!("(component {wat})")).expect("a component");
        let mut instances = Instances::default();
        for part in Parser::new(0).parse_all(&wasm) {
            instances.add(&part.expect("a part")).expect("it is well-formed");
        }
        assert_eq!(instances.depth(), 0);
        instances
    }

    #[test]
    fn instances_multiply_over_inner_components() {
        let inner = "(component $a (core module $m (global i32 (i32.const 1)))
            (core instance (instantiate $m)) (core instance (instantiate $m)))
            (component $b (alias outer 1 $a (component $in))
                (instance (instantiate $in)) (instance (instantiate $in)))";
        let unused = counted(inner);
        assert_eq!(unused.made(), Made::default());
        let once = counted(&format!("{inner} (instance (instantiate $b))"));
        // One of $b, two of $a, and two core instances in each of these.
        assert_eq!((once.made().instances, once.globals()), (1 + 2 + 4, 4));
        let bytes = once.made().definition_bytes;
        assert!((20..40).contains(&bytes), "{bytes}");
        let twice = counted(&format!(
            "{inner} (instance (instantiate $b)) (export $e \"e\" (component $b))
             (instance (instantiate $e))"
        ));
        assert_eq!((twice.made().instances, twice.globals()), (14, 8), "an export is another name");
        assert_eq!(twice.made().definition_bytes, 2 * bytes);
    }

    #[test]
    fn parts_from_elsewhere_are_the_largest_or_unknown() {
        let modules = "(core module $one (global i32 (i32.const 1)))
            (core module $two (global i32 (i32.const 1)) (global i32 (i32.const 1)))";
        for (wat, globals) in [
            ("(core instance (instantiate $one))", 1),
            ("(import \"m\" (core module $m)) (core instance (instantiate $m))", 2),
            (
                "(component $c (core module $m) (export \"m\" (core module $m)))
                 (instance $i (instantiate $c)) (alias export $i \"m\" (core module $m))
                 (core instance (instantiate $m))",
                2,
            ),
            // Without its own index, the export would shift those of the modules behind it.
            (
                "(export $e \"two\" (core module $two)) (core module $none)
                 (core instance (instantiate $e)) (core instance (instantiate $none))",
                2,
            ),
            (
                "(component $c (alias outer 1 $two (core module $m))
                    (core instance (instantiate $m))) (instance (instantiate $c))",
                2,
            ),
        ] {
            assert_eq!(counted(&format!("{modules} {wat}")).globals(), globals, "{wat}");
        }
        let exported = "(component $c (component $in) (export \"c\" (component $in)))
            (instance $i (instantiate $c)) (alias export $i \"c\" (component $d))";
        let imported = "(import \"c\" (component $d))";
        for wat in [exported, imported] {
            assert!(!counted(wat).made().has_foreign_components, "{wat}");
            let made = counted(&format!("{wat} (instance (instantiate $d))")).made();
            assert!(made.has_foreign_components, "{wat}");
        }
    }
}
