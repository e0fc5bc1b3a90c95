//! Expressions over an event, in JMESPath, bounded before they are ever evaluated.
//!
//! The one thing to know: JMESPath has no loops and no recursion, so that what an expression costs follows from its form.
//! [`growth`] is a bound on how many times the event's size it can touch or answer; an expression over [`MOST_GROWTH`] is
//! refused when its rule is put, and so is one that nests too deeply for the parser's stack. The one function whose answer
//! is a product of its arguments, `join`, is replaced by one that stops.

use std::sync::LazyLock;

use jmespath::{
    Context, ErrorReason, JmespathError, Rcvar, Runtime, RuntimeError, Variable,
    ast::Ast,
    functions::{ArgumentType, CustomFunction, Signature},
};
use serde_json::{Map, Number, Value};

/// Most bytes of an expression.
pub const TEXT_BYTES: usize = 1024;
/// Most brackets inside one another, lists, wildcards, negations and references, all together.
pub const NESTING: usize = 64;
/// Most steps of an expression that follow on one another.
const DEPTH: usize = 128;
/// How many times the event's own size an expression may touch or answer, by its form.
pub const MOST_GROWTH: u64 = 200;
/// Most bytes that all the expressions of one rule may answer for one event.
pub const MOST_OUTPUT: usize = 1 << 20;
/// Past this an index or a step is no place in a list of any event's.
const MOST_INDEX: i32 = 1 << 24;

/// An expression, read and known to be bounded.
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
    /// The expression that `text` is.
    ///
    /// # Errors
    ///
    /// What is wrong with it, as a fragment for people: its syntax, a function that is not known or has too many or too few
    /// arguments, or that it is not bounded.
    pub fn read(text: &str) -> Result<Self, String> {
        if text.len() > TEXT_BYTES {
            return Err(format!("must be at most {TEXT_BYTES} bytes"));
        }
        if nesting(text) > NESTING {
            return Err(format!("must have at most {NESTING} brackets, wildcards and negations"));
        }
        let ast = jmespath::parse(text)
            .map_err(|error| format!("is no JMESPath expression: {}", said(&error)))?;
        check(&ast, DEPTH)?;
        if growth(&ast) > MOST_GROWTH {
            return Err(format!(
                "must not be able to answer more than {MOST_GROWTH} times what it is given"
            ));
        }
        Ok(Self { text: text.to_owned(), ast })
    }

    /// The expression as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether it is the data of the event and nothing else.
    pub fn is_data(&self) -> bool {
        matches!(&self.ast, Ast::Field { name, .. } if name == "data")
    }

    /// What it yields for `event`. Of `left`, the bytes that may still be answered, it takes what it uses.
    ///
    /// # Errors
    ///
    /// What went wrong, as a fragment for people.
    pub fn evaluate(&self, event: &Rcvar, left: &mut usize) -> Result<Value, String> {
        let mut context = Context::new(&self.text, &FUNCTIONS);
        let answer =
            jmespath::interpret(event, &self.ast, &mut context).map_err(|error| said(&error))?;
        value_of(&answer, left)
    }
}

/// An error in one line, without the picture of where it is.
fn said(error: &JmespathError) -> String {
    let reason = match &error.reason {
        ErrorReason::Parse(reason) => reason.trim_end().to_owned(),
        ErrorReason::Runtime(reason) => reason.to_string(),
    };
    format!("{reason} (at character {})", error.offset + 1)
}

/// How deep the parser may call itself over `text`, at most: once for each round bracket or brace that is open, and once more for
/// whatever begins a projection or stands before another expression, which ends nobody knows where.
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

/// Checks every step: what it calls, which places it names, how deep it goes.
fn check(ast: &Ast, depth: usize) -> Result<(), String> {
    let Some(depth) = depth.checked_sub(1) else {
        return Err(format!("must have at most {DEPTH} steps after one another"));
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
    if index.unsigned_abs() <= MOST_INDEX.unsigned_abs() {
        Ok(())
    } else {
        Err(format!("must not count past {MOST_INDEX}"))
    }
}

/// Checks that there is a function of this name, and that it takes so many arguments: it is asked with as many nulls, and
/// looks at their number before anything else.
fn check_call(name: &str, args: &[Ast]) -> Result<(), String> {
    let Some(function) = FUNCTIONS.get_function(name) else {
        return Err(format!("calls {name}, which is no function of JMESPath"));
    };
    let nulls = vec![Rcvar::new(Variable::Null); args.len()];
    match function.evaluate(&nulls, &mut Context::new("", &FUNCTIONS)) {
        Err(JmespathError {
            reason: ErrorReason::Runtime(RuntimeError::TooManyArguments { expected, actual }),
            ..
        }) => Err(format!("calls {name} with {actual} arguments, and it takes {expected}")),
        Err(JmespathError {
            reason: ErrorReason::Runtime(RuntimeError::NotEnoughArguments { expected, actual }),
            ..
        }) => {
            Err(format!("calls {name} with {actual} arguments, and it takes at least {expected}"))
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

/// A bound on how many times the size of what it is given `ast` can touch, and on how many times that size its answer is.
///
/// What is applied to the answer of another multiplies; what stands beside another adds. A projection applies its right side
/// to parts that are disjoint, so it multiplies no more than any other step.
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
        // A function that takes an expression applies it to what else it takes.
        Ast::Function { args, .. } if args.iter().any(|arg| matches!(arg, Ast::Expref { .. })) => {
            args.iter().map(of).fold(1, u64::saturating_mul)
        }
        other => children(other).into_iter().map(of).fold(0, u64::saturating_add).max(1),
    }
}

/// `join(glue, texts)`, which ends with an error before its answer is too large: its size is a product.
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
    if size > MOST_OUTPUT {
        let reason = ErrorReason::Parse(format!("join would answer more than {MOST_OUTPUT} bytes"));
        return Err(JmespathError::from_ctx(ctx, reason));
    }
    Ok(Rcvar::new(Variable::String(texts.join(glue))))
}

/// An answer as a plain value, as long as it fits into `left`.
fn value_of(answer: &Variable, left: &mut usize) -> Result<Value, String> {
    let mut take = |bytes: usize| {
        *left = left
            .checked_sub(bytes)
            .ok_or_else(|| format!("yields more than {MOST_OUTPUT} bytes"))?;
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
                    .ok_or_else(|| format!("yields more than {MOST_OUTPUT} bytes"))?;
                fields.insert(name.clone(), value_of(inner, left)?);
            }
            Value::Object(fields)
        }
        Variable::Expref(_) => return Err("yields an expression, which is no value".into()),
    })
}

/// JMESPath counts in fractions: 2.0, where it counted, is 2.
fn whole(number: &Number) -> Number {
    match number.as_f64() {
        Some(real) if number.is_f64() && real.fract() == 0.0 && real.abs() < 9e15 => {
            Number::from(real as i64)
        }
        _ => number.clone(),
    }
}

/// JSON as what expressions look at.
///
/// # Errors
///
/// Text that is not JSON.
pub fn variable(json: &[u8]) -> Result<Variable, String> {
    serde_json::from_slice(json).map_err(|error| error.to_string())
}
