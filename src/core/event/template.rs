//! Templates: JSON values in which `{"$expr": "..."}` is replaced by the result of an expression.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::expression::Expression;
use crate::validate::ValidationError;

/// The key of an object that is an expression.
pub const KEY: &str = "$expr";

/// A template as its author wrote it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Template(pub Value);

/// A template whose expressions are parsed.
#[derive(Clone, Debug, PartialEq)]
pub enum Compiled {
    /// The same value for every event.
    Literal(Value),
    /// The result of an expression.
    Expression(Expression),
    /// A list of templates.
    List(Vec<Compiled>),
    /// An object of templates.
    Object(Vec<(String, Compiled)>),
}

impl Template {
    /// Parses the expressions of the template.
    ///
    /// # Errors
    ///
    /// A fault with the path of the invalid expression.
    pub fn compile(&self) -> Result<Compiled, ValidationError> {
        compile(&self.0)
    }
}

fn compile(value: &Value) -> Result<Compiled, ValidationError> {
    match value {
        Value::Object(fields) if fields.contains_key(KEY) => {
            let Some(Value::String(text)) = fields.get(KEY).filter(|_| fields.len() == 1) else {
                return Err(ValidationError::new(
                    "",
                    format!("must be {{\"{KEY}\": \"a JMESPath expression\"}} without other keys"),
                ));
            };
            Expression::read(text)
                .map(Compiled::Expression)
                .map_err(|message| ValidationError::new("", message))
        }
        Value::Object(fields) => {
            let compiled = fields.iter().map(|(name, inner)| {
                Ok((name.clone(), compile(inner).map_err(|fault| fault.within(name))?))
            });
            let compiled = compiled.collect::<Result<Vec<_>, ValidationError>>()?;
            let literal = compiled.iter().all(|(_, inner)| matches!(inner, Compiled::Literal(_)));
            Ok(if literal { Compiled::Literal(value.clone()) } else { Compiled::Object(compiled) })
        }
        Value::Array(items) => {
            let indexed = items.iter().enumerate();
            let compiled = indexed.map(|(index, inner)| {
                compile(inner).map_err(|fault| fault.within(format_args!("[{index}]")))
            });
            let compiled = compiled.collect::<Result<Vec<_>, ValidationError>>()?;
            let literal = compiled.iter().all(|inner| matches!(inner, Compiled::Literal(_)));
            Ok(if literal { Compiled::Literal(value.clone()) } else { Compiled::List(compiled) })
        }
        other => Ok(Compiled::Literal(other.clone())),
    }
}

impl Compiled {
    /// The value of the template, where `yields` evaluates its expressions.
    ///
    /// # Errors
    ///
    /// The path of the expression that failed, and why.
    pub fn fill(
        &self,
        yields: &mut impl FnMut(&Expression) -> Result<Value, String>,
    ) -> Result<Value, ValidationError> {
        match self {
            Self::Literal(value) => Ok(value.clone()),
            Self::Expression(expression) => {
                yields(expression).map_err(|message| ValidationError::new("", message))
            }
            Self::List(items) => {
                let filled = items.iter().enumerate();
                let filled = filled.map(|(index, inner)| {
                    inner.fill(yields).map_err(|fault| fault.within(format_args!("[{index}]")))
                });
                filled.collect::<Result<Vec<_>, _>>().map(Value::Array)
            }
            Self::Object(fields) => {
                let mut filled = Map::new();
                for (name, inner) in fields {
                    filled.insert(
                        name.clone(),
                        inner.fill(yields).map_err(|fault| fault.within(name))?,
                    );
                }
                Ok(Value::Object(filled))
            }
        }
    }

    /// Whether it is exactly the data of the event, so that its bytes can be used as they arrived.
    pub fn is_data(&self) -> bool {
        matches!(self, Self::Expression(expression) if expression.is_data())
    }
}
