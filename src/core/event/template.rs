//! Templates: JSON values in which an object `{"$expr": "..."}` stands for what an expression yields.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::expression::Expression;
use crate::validate::ValidationError;

/// The key of an object that stands for an expression.
pub const KEY: &str = "$expr";

/// A template as its author wrote it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Template(pub Value);

/// A template whose expressions are read.
#[derive(Clone, Debug, PartialEq)]
pub enum Compiled {
    /// This, whatever the event.
    Literal(Value),
    /// What this yields.
    Expression(Expression),
    /// A list of templates.
    List(Vec<Compiled>),
    /// An object of templates.
    Object(Vec<(String, Compiled)>),
}

impl Template {
    /// The template with its expressions read.
    ///
    /// # Errors
    ///
    /// A fault with the path of the expression that is wrong.
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
                    format!(
                        "must be {{\"{KEY}\": \"a JMESPath expression\"}} and nothing beside it"
                    ),
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
    /// The value that it is for the event that `yields` evaluates expressions over.
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

    /// Whether it is the data of the event and nothing else, so that its bytes can be taken as they came.
    pub fn is_data(&self) -> bool {
        matches!(self, Self::Expression(expression) if expression.is_data())
    }
}
