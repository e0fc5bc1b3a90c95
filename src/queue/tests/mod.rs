//! Tables and properties of who may start now.

mod window;
