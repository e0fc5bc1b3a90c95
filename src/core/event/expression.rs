//! Expressions over an event, in JMESPath, bounded before they are evaluated.
//!
//! JMESPath has no loops and no recursion, so the cost of an expression follows from its form.
//! [`growth`] bounds how much it reads or yields, as a multiple of the event's size. An expression
//! over [`MAX_GROWTH`] is refused when its rule is stored, and so is one that nests too deeply for
//! the parser's stack. The result of `join` can be a product of the sizes of its arguments; it is
//! replaced by a function that stops at a bound.

use std::sync::LazyLock;

use jmespath::{
    Context, ErrorReason, JmespathError, Rcvar, Runtime, RuntimeError, Variable,
    ast::Ast,
    functions::{ArgumentType, CustomFunction, Signature},
};
use serde_json::{Map, Number, Value};

/// Most bytes of an expression.
pub const TEXT_BYTES: usize = 1024;
/// Most nested brackets and braces, plus lists, wildcards, negations and references.
pub(crate) const NESTING: usize = 64;
/// Most levels of an expression's syntax tree.
const DEPTH: usize = 128;
/// Most that an expression may read or yield, as a multiple of the event's size.
pub const MAX_GROWTH: u64 = 200;
/// Most bytes that all expressions of one rule together may yield for one event.
pub const MAX_OUTPUT_BYTES: usize = 1 << 20;
/// Largest index or step. No list of an event has as many items.
const MAX_INDEX: i32 = 1 << 24;

/// An expression that was parsed and is bounded.
#[derive(Clone, Debug, PartialEq)]
pub struct Expression {
    text: String,
    ast: Ast,
}

/// The functions that expressions may call: JMESPath's own.
static FUNCTIONS: LazyLock<Runtime> = LazyLock::new(|| {
    let mut runtime = Runtime::new();
    runtime.register_builtin_functions();
    let texts = ArgumentType::TypedArray(Box::new(ArgumentType::String));
    let signature = Signature::new(vec![ArgumentType::String, texts], None);
    runtime.register_function(
        "join",
        Box::new(CustomFunction::new(signature, Box::new(|args, ctx| join(args, ctx)))),
    );
    runtime
});

impl Expression {
    /// Parses and checks an expression.
    ///
    /// # Errors
    ///
    /// A fragment for people: wrong syntax, an unknown function, a wrong number of arguments, or
    /// too much nesting or growth.
    pub fn read(text: &str) -> Result<Self, String> {
        if text.len() > TEXT_BYTES {
            return Err(format!("must be at most {TEXT_BYTES} bytes"));
        }
        if nesting(text) > NESTING {
            return Err(format!("must have at most {NESTING} brackets, wildcards and negations"));
        }
        let ast = jmespath::parse(text)
            .map_err(|error| format!("must be a JMESPath expression: {}", said(&error)))?;
        check(&ast, DEPTH)?;
        if growth(&ast) > MAX_GROWTH {
            return Err(format!(
                "must not be able to yield more than {MAX_GROWTH} times the event's size"
            ));
        }
        Ok(Self { text: text.to_owned(), ast })
    }

    /// The expression as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether it is exactly `data`.
    pub fn is_data(&self) -> bool {
        matches!(&self.ast, Ast::Field { name, .. } if name == "data")
    }

    /// Its result for `event`. Subtracts the result's size from `left`, the bytes that its rule may
    /// still yield.
    ///
    /// # Errors
    ///
    /// The reason, as a fragment for people.
    pub(crate) fn evaluate(&self, event: &Rcvar, left: &mut usize) -> Result<Value, String> {
        let mut context = Context::new(&self.text, &FUNCTIONS);
        let answer =
            jmespath::interpret(event, &self.ast, &mut context).map_err(|error| said(&error))?;
        value_of(&answer, left)
    }
}

/// An error in one line, without the drawing of its position.
fn said(error: &JmespathError) -> String {
    let reason = match &error.reason {
        ErrorReason::Parse(reason) => reason.trim_end().to_owned(),
        ErrorReason::Runtime(reason) => reason.to_string(),
    };
    format!("{reason} (at character {})", error.offset + 1)
}

/// A bound on the parser's recursion over `text`.
///
/// It recurses once for each open parenthesis or brace. It may also recurse for each start of a
/// list, a wildcard, a negation or a reference, whose end is not known here; those are all counted.
fn nesting(text: &str) -> usize {
    let bytes = text.as_bytes();
    let (mut open, mut deepest, mut begun) = (0usize, 0, 0);
    for (at, byte) in bytes.iter().enumerate() {
        let next = bytes.get(at + 1);
        match byte {
            b'(' | b'{' => {
                open += 1;
                deepest = deepest.max(open);
            }
            b')' | b'}' => open = open.saturating_sub(1),
            b'[' | b'*' => begun += 1,
            b'!' if next != Some(&b'=') => begun += 1,
            b'&' if next != Some(&b'&') && (at == 0 || bytes[at - 1] != b'&') => begun += 1,
            _ => {}
        }
    }
    deepest + begun
}

/// Checks every node of the syntax tree: its function, its indexes, its depth.
fn check(ast: &Ast, depth: usize) -> Result<(), String> {
    let Some(depth) = depth.checked_sub(1) else {
        return Err(format!("must have at most {DEPTH} levels"));
    };
    match ast {
        Ast::Function { name, args, .. } => check_call(name, args)?,
        Ast::Index { idx, .. } => check_index(*idx)?,
        Ast::Slice { start, stop, step, .. } => {
            for number in [*start, *stop, Some(*step)].into_iter().flatten() {
                check_index(number)?;
            }
            if *step == 0 {
                return Err("must not have a slice with step 0".into());
            }
        }
        _ => {}
    }
    children(ast).into_iter().try_for_each(|child| check(child, depth))
}

fn check_index(index: i32) -> Result<(), String> {
    if index.unsigned_abs() <= MAX_INDEX.unsigned_abs() {
        Ok(())
    } else {
        Err(format!("must have indexes and steps of at most {MAX_INDEX}"))
    }
}

/// Checks that the function exists and takes this number of arguments.
///
/// The function is called with as many nulls, because it checks their number first.
fn check_call(name: &str, args: &[Ast]) -> Result<(), String> {
    let Some(function) = FUNCTIONS.get_function(name) else {
        return Err(format!("calls {name}, which is not a function of JMESPath"));
    };
    let nulls = vec![Rcvar::new(Variable::Null); args.len()];
    match function.evaluate(&nulls, &mut Context::new("", &FUNCTIONS)) {
        Err(JmespathError {
            reason: ErrorReason::Runtime(RuntimeError::TooManyArguments { expected, actual }),
            ..
        }) => Err(format!("calls {name} with {actual} arguments, but it takes {expected}")),
        Err(JmespathError {
            reason: ErrorReason::Runtime(RuntimeError::NotEnoughArguments { expected, actual }),
            ..
        }) => {
            Err(format!("calls {name} with {actual} arguments, but it takes at least {expected}"))
        }
        _ => Ok(()),
    }
}

fn children(ast: &Ast) -> Vec<&Ast> {
    match ast {
        Ast::Comparison { lhs, rhs, .. }
        | Ast::Projection { lhs, rhs, .. }
        | Ast::And { lhs, rhs, .. }
        | Ast::Or { lhs, rhs, .. }
        | Ast::Subexpr { lhs, rhs, .. } => vec![lhs, rhs],
        Ast::Condition { predicate, then, .. } => vec![predicate, then],
        Ast::Expref { ast, .. } => vec![ast],
        Ast::Flatten { node, .. } | Ast::Not { node, .. } | Ast::ObjectValues { node, .. } => {
            vec![node]
        }
        Ast::Function { args, .. } => args.iter().collect(),
        Ast::MultiList { elements, .. } => elements.iter().collect(),
        Ast::MultiHash { elements, .. } => elements.iter().map(|pair| &pair.value).collect(),
        Ast::Identity { .. }
        | Ast::Field { .. }
        | Ast::Index { .. }
        | Ast::Literal { .. }
        | Ast::Slice { .. } => Vec::new(),
    }
}

/// A bound on how much `ast` reads and how large its result is, as a multiple of its input's size.
///
/// A node that is applied to the result of another multiplies; siblings add. A projection applies
/// its right side to disjoint parts, so it multiplies no more than any other node.
fn growth(ast: &Ast) -> u64 {
    let of = |ast: &Ast| growth(ast).max(1);
    match ast {
        Ast::Literal { value, .. } => value.to_string().len() as u64,
        Ast::Subexpr { lhs, rhs, .. } | Ast::Projection { lhs, rhs, .. } => {
            of(lhs).saturating_mul(of(rhs))
        }
        Ast::Comparison { lhs, rhs, .. } | Ast::And { lhs, rhs, .. } | Ast::Or { lhs, rhs, .. } => {
            of(lhs).saturating_add(of(rhs))
        }
        Ast::Condition { predicate, then, .. } => of(predicate).saturating_add(of(then)),
        Ast::MultiHash { elements, .. } => elements
            .iter()
            .map(|pair| of(&pair.value).saturating_add(pair.key.len() as u64 / 16))
            .fold(0, u64::saturating_add),
        // A function that takes an expression applies it to its other arguments.
        Ast::Function { args, .. } if args.iter().any(|arg| matches!(arg, Ast::Expref { .. })) => {
            args.iter().map(of).fold(1, u64::saturating_mul)
        }
        other => children(other).into_iter().map(of).fold(0, u64::saturating_add).max(1),
    }
}

/// `join(glue, texts)`, with an error if the result would be too large.
fn join(args: &[Rcvar], ctx: &Context<'_>) -> Result<Rcvar, JmespathError> {
    let (Some(glue), Some(texts)) = (args[0].as_string(), args[1].as_array()) else {
        return Ok(Rcvar::new(Variable::Null));
    };
    let texts: Vec<&str> =
        texts.iter().filter_map(|text| text.as_string().map(String::as_str)).collect();
    let size = texts
        .iter()
        .map(|text| text.len())
        .sum::<usize>()
        .saturating_add(glue.len().saturating_mul(texts.len()));
    if size > MAX_OUTPUT_BYTES {
        let reason =
            ErrorReason::Parse(format!("join would yield more than {MAX_OUTPUT_BYTES} bytes"));
        return Err(JmespathError::from_ctx(ctx, reason));
    }
    Ok(Rcvar::new(Variable::String(texts.join(glue))))
}

/// A result as a plain value, if it fits into `left` bytes.
fn value_of(answer: &Variable, left: &mut usize) -> Result<Value, String> {
    let mut take = |bytes: usize| {
        *left = left
            .checked_sub(bytes)
            .ok_or_else(|| format!("yields more than {MAX_OUTPUT_BYTES} bytes"))?;
        Ok::<(), String>(())
    };
    Ok(match answer {
        Variable::Null => {
            take(4)?;
            Value::Null
        }
        Variable::Bool(flag) => {
            take(4)?;
            Value::Bool(*flag)
        }
        Variable::Number(number) => {
            take(8)?;
            Value::Number(whole(number))
        }
        Variable::String(text) => {
            take(text.len() + 2)?;
            Value::String(text.clone())
        }
        Variable::Array(list) => {
            take(2)?;
            Value::Array(list.iter().map(|inner| value_of(inner, left)).collect::<Result<_, _>>()?)
        }
        Variable::Object(map) => {
            take(2)?;
            let mut fields = Map::new();
            for (name, inner) in map {
                *left = left
                    .checked_sub(name.len() + 3)
                    .ok_or_else(|| format!("yields more than {MAX_OUTPUT_BYTES} bytes"))?;
                fields.insert(name.clone(), value_of(inner, left)?);
            }
            Value::Object(fields)
        }
        Variable::Expref(_) => {
            return Err("yields an expression reference, which is not a value".into());
        }
    })
}

/// A whole number without its fraction: functions of JMESPath yield 2.0 for 2.
fn whole(number: &Number) -> Number {
    match number.as_f64() {
        Some(real) if number.is_f64() && real.fract() == 0.0 && real.abs() < 9e15 => {
            Number::from(real as i64)
        }
        _ => number.clone(),
    }
}

/// JSON in the form that expressions read.
///
/// # Errors
///
/// Text that is not JSON.
pub fn variable(json: &[u8]) -> Result<Variable, String> {
    serde_json::from_slice(json).map_err(|error| error.to_string())
}
