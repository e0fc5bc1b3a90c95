//! Routes of handlers with `#[utoipa::path]`: the annotation has the path and the method of each.

use axum::{
    Extension, Router,
    handler::Handler,
    routing::{MethodFilter, on},
};
#[cfg(test)]
use utoipa::openapi::OpenApi;
use utoipa::{
    __dev::{SchemaReferences, Tags},
    openapi::HttpMethod,
};

use super::{Api, body::BodyLimit};

/// Routes without their state.
pub struct Routes {
    router: Router<Api>,
    /// Adds each operation to a document.
    #[cfg(test)]
    described: Vec<fn(&mut OpenApi)>,
}

/// What an annotation gives: the path, the method and the description.
pub trait Annotation: utoipa::Path + SchemaReferences + Tags<'static> {}
impl<P: utoipa::Path + SchemaReferences + Tags<'static>> Annotation for P {}

impl Routes {
    /// No routes.
    pub fn new() -> Self {
        Self {
            router: Router::new(),
            #[cfg(test)]
            described: Vec::new(),
        }
    }

    /// Adds the route of `handler`, whose annotation is `A`. [`routes!`] calls it.
    pub fn on<A: Annotation, H: Handler<T, Api>, T: 'static>(mut self, handler: H) -> Self {
        let methods = A::methods().iter().map(filter).reduce(MethodFilter::or);
        let route = on(methods.expect("an annotation has a method"), handler);
        self.router = self.router.route(&A::path(), route);
        #[cfg(test)]
        self.described.push(describe::<A>);
        self
    }

    /// These routes and those of `other`.
    pub fn merge(mut self, other: Self) -> Self {
        self.router = self.router.merge(other.router);
        #[cfg(test)]
        self.described.extend(other.described);
        self
    }

    /// Lets bodies of these routes have up to `bytes`.
    pub fn body_limit(mut self, bytes: usize) -> Self {
        self.router = self.router.layer(Extension(BodyLimit(bytes)));
        self
    }

    /// The routes with `api` as their state.
    pub fn with_state(self, api: Api) -> Router {
        self.router.with_state(api)
    }

    /// Adds the operations and the schemas that they refer to to `document`.
    #[cfg(test)]
    pub fn describe(&self, document: &mut OpenApi) {
        for describe in &self.described {
            describe(document);
        }
    }
}

/// The routes of these handlers, each by its name or as `module::name`.
macro_rules! routes {
    (@add $routes:expr;) => { $routes };
    (@add $routes:expr; $module:ident :: $handler:ident $(, $($rest:tt)*)?) => {
        routes!(@add pastey::paste!(
            $routes.on::<$module::[<__path_ $handler>], _, _>($module::$handler)
        ); $($($rest)*)?)
    };
    (@add $routes:expr; $handler:ident $(, $($rest:tt)*)?) => {
        routes!(@add pastey::paste!(
            $routes.on::<[<__path_ $handler>], _, _>($handler)
        ); $($($rest)*)?)
    };
    ($($handlers:tt)+) => { routes!(@add $crate::handlers::routes::Routes::new(); $($handlers)+) };
}
pub(crate) use routes;

/// The filter of requests with this method.
fn filter(method: &HttpMethod) -> MethodFilter {
    match method {
        HttpMethod::Get => MethodFilter::GET,
        HttpMethod::Put => MethodFilter::PUT,
        HttpMethod::Post => MethodFilter::POST,
        HttpMethod::Delete => MethodFilter::DELETE,
        HttpMethod::Options => MethodFilter::OPTIONS,
        HttpMethod::Head => MethodFilter::HEAD,
        HttpMethod::Patch => MethodFilter::PATCH,
        HttpMethod::Trace => MethodFilter::TRACE,
    }
}

/// Adds the operation of an annotation and the schemas that it refers to to `document`.
#[cfg(test)]
fn describe<A: Annotation>(document: &mut OpenApi) {
    let mut operation = A::operation();
    let tags = A::tags();
    if !tags.is_empty() {
        operation.tags.get_or_insert_default().extend(tags.into_iter().map(str::to_owned));
    }
    document.paths.add_path_operation(A::path(), A::methods(), operation);
    let mut schemas = Vec::new();
    A::schemas(&mut schemas);
    document.components.get_or_insert_default().schemas.extend(schemas);
}
