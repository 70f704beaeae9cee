//! Calls without compiled types: signatures as data, and JSON in place of Rust values.
//!
//! An image says in text what its functions take and return ([`coracle_abi::signature`]). [`Signature`] is that text
//! taken apart; with it a host that was compiled long before the image, such as the command-line tool, turns JSON into
//! arguments and a result into JSON.
//!
//! | type | JSON |
//! |---|---|
//! | `bool` | `true`, `false` |
//! | integers | a number; where JSON numbers as `serde_json` has them end (beyond `u64` and `i64`), a string of digits. Strings are read for 64 and 128 bits whatever the value |
//! | `f32`, `f64` | a number; `"NaN"`, `"inf"` and `"-inf"` for what JSON has no numbers for. A NaN's payload is lost |
//! | `char` | a string of one character |
//! | `string` | a string |
//! | `bytes` | an array of numbers; a string is read too, as its UTF-8 bytes |
//! | `()` | `null`; `[]` is read too |
//! | `option<T>` | `null`, or what `T` is. Where `T` can be `null` itself, `null` is read as nothing, and so `option<option<T>>` cannot be told apart |
//! | `[T]`, tuples | an array |
//! | `map<K,V>` | an object if `K` is a string, an integer, `bool` or `char`; else an array of `[key, value]` |
//! | structs | an object. Unknown fields are an error, and so are missing ones, except options |
//! | enums | `"A"` for a unit variant; else an object with one entry, `{"B": 1}`, `{"C": [1, 2]}`, `{"D": {"a": 1}}` |
//! | `schema` | nothing: it is refused |
//!
//! It is what `serde_json` makes of the same Rust types, if they use no serde attribute but `rename`, which is the one
//! that `postcard-schema` knows of.
//!
//! Both the text and the bytes come from a guest. Nothing here recurses deeper than the text's limit of
//! [`MAX_DEPTH`](coracle_abi::signature::MAX_DEPTH), and a result whose JSON would need more than
//! [`MAX_JSON_BYTES`] of memory is refused: few bytes can claim any number of elements that have none.
//!
//! This is our own code because `postcard-dyn`, the crate for it, trusts its bytes: it loops as often as they say, and
//! panics at a `char`.

mod decode;
mod encode;
mod parse;
#[cfg(test)]
mod tests;

use coracle_abi::signature;
use std::fmt;

pub use decode::MAX_JSON_BYTES;

/// A function's name and types, taken from its note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// The name, by which it is called.
    pub name: String,
    /// What it takes.
    pub parameters: Vec<Parameter>,
    /// What it returns, when it does not return an error.
    pub result: Type,
}

/// A parameter of a [`Signature`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name, if the image has one for it.
    pub name: Option<String>,
    /// Its type.
    pub ty: Type,
}

/// A type, as far as it shows on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the scalars' names say it all")]
pub enum Type {
    Bool,
    I8,
    I16,
    I32,
    I64,
    I128,
    Isize,
    U8,
    U16,
    U32,
    U64,
    U128,
    Usize,
    F32,
    F64,
    Char,
    String,
    /// A byte string, or a sequence of `u8`.
    Bytes,
    /// Unit, or a tuple or an array without elements.
    Unit,
    /// An optional value.
    Option(Box<Self>),
    /// Any number of values of one type.
    Seq(Box<Self>),
    /// A tuple, a tuple struct or an array; at least one element.
    Tuple(Vec<Self>),
    /// Keys and their values.
    Map(Box<Self>, Box<Self>),
    /// Fields with names, no two of them the same.
    Struct(Vec<Field>),
    /// One of several variants, no two names the same.
    Enum(Vec<Variant>),
    /// A description of a type.
    Schema,
}

/// A field of a struct or of a struct variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// Its type.
    pub ty: Type,
}

/// A variant of an enum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Its name.
    pub name: String,
    /// What it holds.
    pub holds: Holds,
}

/// What an enum's variant holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holds {
    /// Nothing: `A`.
    Nothing,
    /// One value: `B(T)`.
    One(Type),
    /// No values in parentheses, or several: `C()`, `C(T,U)`.
    Tuple(Vec<Type>),
    /// Fields: `D{a:T}`.
    Fields(Vec<Field>),
}

/// The form for people, `greet(name: string) -> string`.
impl fmt::Display for Signature {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}(", self.name)?;
        list(out, &self.parameters, |out, Parameter { name, ty }| match name {
            Some(name) => write!(out, "{name}: {ty}"),
            None => write!(out, "{ty}"),
        })?;
        write!(out, ") -> {}", self.result)
    }
}

/// The text of the signature's grammar, with spaces after commas and colons.
impl fmt::Display for Type {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Option(some) => write!(out, "option<{some}>"),
            Self::Seq(item) => write!(out, "[{item}]"),
            Self::Tuple(items) => {
                out.write_str("(")?;
                list(out, items, |out, item| write!(out, "{item}"))?;
                out.write_str(if items.len() == 1 { ",)" } else { ")" })
            }
            Self::Map(key, value) => write!(out, "map<{key}, {value}>"),
            Self::Struct(fields) => write_fields(out, fields),
            Self::Enum(variants) => {
                out.write_str("enum{")?;
                list(out, variants, |out, Variant { name, holds }| {
                    write_name(out, name)?;
                    match holds {
                        Holds::Nothing => Ok(()),
                        Holds::One(value) => write!(out, "({value})"),
                        Holds::Tuple(items) => {
                            out.write_str("(")?;
                            list(out, items, |out, item| write!(out, "{item}"))?;
                            out.write_str(")")
                        }
                        Holds::Fields(fields) => write_fields(out, fields),
                    }
                })?;
                out.write_str("}")
            }
            scalar => out.write_str(scalar.word()),
        }
    }
}

impl Type {
    /// All types that are one word, or unit.
    const SCALARS: [Self; 20] = [
        Self::Bool,
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::I128,
        Self::Isize,
        Self::U8,
        Self::U16,
        Self::U32,
        Self::U64,
        Self::U128,
        Self::Usize,
        Self::F32,
        Self::F64,
        Self::Char,
        Self::String,
        Self::Bytes,
        Self::Unit,
        Self::Schema,
    ];

    /// How the grammar writes it; of the types with parts, what kind of type it is.
    const fn word(&self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::I8 => "i8",
            Self::I16 => "i16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::I128 => "i128",
            Self::Isize => "isize",
            Self::U8 => "u8",
            Self::U16 => "u16",
            Self::U32 => "u32",
            Self::U64 => "u64",
            Self::U128 => "u128",
            Self::Usize => "usize",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::Char => "char",
            Self::String => "string",
            Self::Bytes => "bytes",
            Self::Unit => "()",
            Self::Schema => "schema",
            Self::Option(_) => "option",
            Self::Seq(_) => "sequence",
            Self::Tuple(_) => "tuple",
            Self::Map(..) => "map",
            Self::Struct(_) => "struct",
            Self::Enum(_) => "enum",
        }
    }

    /// Whether a map with such keys is a JSON object.
    const fn is_json_key(&self) -> bool {
        matches!(self, Self::String | Self::Char | Self::Bool) || self.is_integer()
    }

    const fn is_integer(&self) -> bool {
        self.is_signed() || matches!(self, Self::U8 | Self::U16 | Self::U32 | Self::U64 | Self::U128 | Self::Usize)
    }

    const fn is_signed(&self) -> bool {
        matches!(self, Self::I8 | Self::I16 | Self::I32 | Self::I64 | Self::I128 | Self::Isize)
    }
}

/// Writes items with a comma between them.
fn list<T>(
    out: &mut fmt::Formatter<'_>,
    items: &[T],
    write: impl Fn(&mut fmt::Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    for (number, item) in items.iter().enumerate() {
        if number > 0 {
            out.write_str(", ")?;
        }
        write(out, item)?;
    }
    Ok(())
}

fn write_fields(out: &mut fmt::Formatter<'_>, fields: &[Field]) -> fmt::Result {
    out.write_str("{")?;
    list(out, fields, |out, Field { name, ty }| {
        write_name(out, name)?;
        write!(out, ": {ty}")
    })?;
    out.write_str("}")
}

/// Writes a field's or variant's name, quoted as the grammar does if it must be.
fn write_name(out: &mut impl fmt::Write, name: &str) -> fmt::Result {
    if signature::is_bare(name) {
        return out.write_str(name);
    }
    out.write_char('"')?;
    for character in name.chars() {
        match character {
            '"' | '\\' => write!(out, "\\{character}")?,
            character if character.is_ascii_control() => write!(out, "\\x{:02x}", u32::from(character))?,
            character => out.write_char(character)?,
        }
    }
    out.write_char('"')
}

/// Why a text is not a signature or a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// Bytes of the text before the fault.
    at: usize,
    message: &'static str,
}

impl fmt::Display for ParseError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} at byte {}", self.message, self.at)
    }
}

impl std::error::Error for ParseError {}

/// Why a value cannot be converted, and which: `$.points[3].x: expected i32, found a string`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConversionError {
    /// Where in the value, after the `$`.
    path: String,
    message: String,
}

impl ConversionError {
    fn new(message: impl Into<String>) -> Self {
        Self { path: String::new(), message: message.into() }
    }

    /// The same fault, seen from the array of which the value is this element.
    fn in_element(mut self, number: usize) -> Self {
        self.path.insert_str(0, &format!("[{number}]"));
        self
    }

    /// The same fault, seen from the object of which the value is this entry.
    fn in_entry(mut self, name: &str) -> Self {
        let step = if signature::is_bare(name) { format!(".{name}") } else { format!("[{name:?}]") };
        self.path.insert_str(0, &step);
        self
    }
}

impl fmt::Display for ConversionError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "${}: {}", self.path, self.message)
    }
}

impl std::error::Error for ConversionError {}
