//! Tables and properties of who may start now.

mod check;
mod window;
