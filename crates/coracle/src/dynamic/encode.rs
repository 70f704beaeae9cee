//! From JSON to bytes.

use super::{ConversionError, Field, Holds, Signature, Type};
use serde_json::{Map, Value};
use std::str::FromStr;

type Result<T> = std::result::Result<T, ConversionError>;

impl Signature {
    /// Encodes arguments, one value for each parameter.
    ///
    /// # Errors
    /// If they are not as many as the parameters, or one is not of its parameter's type.
    pub fn encode_arguments(&self, arguments: &[Value]) -> Result<Vec<u8>> {
        if arguments.len() != self.parameters.len() {
            let (want, found) = (self.parameters.len(), arguments.len());
            return Err(ConversionError::new(format!("expected {want} arguments, found {found}")));
        }
        let mut out = Vec::new();
        for (number, (parameter, argument)) in self.parameters.iter().zip(arguments).enumerate() {
            encode(&parameter.ty, argument, &mut out).map_err(|error| match &parameter.name {
                Some(name) => error.in_entry(name),
                None => error.in_element(number),
            })?;
        }
        Ok(out)
    }
}

impl Type {
    /// Encodes a value of this type.
    ///
    /// ```
    /// # use coracle::dynamic::Type;
    /// # use serde_json::json;
    /// let ty = Type::parse("{points:[{x:i32}]}").unwrap();
    /// assert_eq!(ty.encode_json(&json!({"points": [{"x": 1}]})).unwrap(), [1, 2]);
    /// let error = ty.encode_json(&json!({"points": [{"x": "1"}]})).unwrap_err();
    /// assert_eq!(error.to_string(), "$.points[0].x: expected i32, found a string");
    /// ```
    ///
    /// # Errors
    /// If it is not one.
    pub fn encode_json(&self, value: &Value) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        encode(self, value, &mut out)?;
        Ok(out)
    }
}

fn encode(ty: &Type, value: &Value, out: &mut Vec<u8>) -> Result<()> {
    match ty {
        Type::Bool => out.push(value.as_bool().ok_or_else(|| mismatch(ty.word(), value))?.into()),
        Type::F32 => {
            let wide = float(ty, value)?;
            let narrow = wide as f32;
            if wide.is_finite() && !narrow.is_finite() {
                return Err(mismatch(ty.word(), value));
            }
            out.extend(narrow.to_le_bytes());
        }
        Type::F64 => out.extend(float(ty, value)?.to_le_bytes()),
        Type::Char => match value.as_str() {
            Some(text) if text.chars().count() == 1 => encode_bytes(text.as_bytes(), out),
            Some(_) => return Err(ConversionError::new("expected one character, found another number of them")),
            None => return Err(mismatch("one character", value)),
        },
        Type::String => encode_bytes(value.as_str().ok_or_else(|| mismatch(ty.word(), value))?.as_bytes(), out),
        Type::Bytes => match value {
            Value::String(text) => encode_bytes(text.as_bytes(), out),
            _ => {
                let items = value.as_array().ok_or_else(|| mismatch("an array of numbers or a string", value))?;
                encode_length(items.len(), out);
                encode_each(items, out, |item, out| encode(&Type::U8, item, out))?;
            }
        },
        Type::Unit => match value {
            Value::Null => {}
            Value::Array(items) if items.is_empty() => {}
            _ => return Err(mismatch("null", value)),
        },
        Type::Option(some) => match value {
            Value::Null => out.push(0),
            value => {
                out.push(1);
                encode(some, value, out)?;
            }
        },
        Type::Seq(item) => {
            let items = value.as_array().ok_or_else(|| mismatch("an array", value))?;
            encode_length(items.len(), out);
            encode_each(items, out, |value, out| encode(item, value, out))?;
        }
        Type::Tuple(types) => encode_tuple(types, value, out)?,
        Type::Map(key, item) if key.is_json_key() => {
            let entries = value.as_object().ok_or_else(|| mismatch("an object", value))?;
            encode_length(entries.len(), out);
            for (name, value) in entries {
                encode_key(key, name, out)
                    .and_then(|()| encode(item, value, out))
                    .map_err(|error| error.in_entry(name))?;
            }
        }
        Type::Map(key, item) => {
            let entries = value.as_array().ok_or_else(|| mismatch("an array of [key, value]", value))?;
            encode_length(entries.len(), out);
            encode_each(entries, out, |entry, out| match entry.as_array().map(Vec::as_slice) {
                Some([left, right]) => {
                    encode(key, left, out).map_err(|error| error.in_element(0))?;
                    encode(item, right, out).map_err(|error| error.in_element(1))
                }
                _ => Err(mismatch("[key, value]", entry)),
            })?;
        }
        Type::Struct(fields) => encode_fields(fields, value, out)?,
        Type::Enum(_) => encode_enum(ty, value, out)?,
        Type::Schema => return Err(ConversionError::new("a description of a type has no JSON form")),
        integer => encode_integer(integer, value, false, out)?,
    }
    Ok(())
}

/// Encodes what an array holds.
fn encode_each(
    items: &[Value],
    out: &mut Vec<u8>,
    encode_item: impl Fn(&Value, &mut Vec<u8>) -> Result<()>,
) -> Result<()> {
    for (number, item) in items.iter().enumerate() {
        encode_item(item, out).map_err(|error| error.in_element(number))?;
    }
    Ok(())
}

fn encode_tuple(types: &[Type], value: &Value, out: &mut Vec<u8>) -> Result<()> {
    let items = value.as_array().ok_or_else(|| mismatch("an array", value))?;
    if items.len() != types.len() {
        let (want, found) = (types.len(), items.len());
        return Err(ConversionError::new(format!("expected an array of {want} elements, found one of {found}")));
    }
    for (number, (ty, item)) in types.iter().zip(items).enumerate() {
        encode(ty, item, out).map_err(|error| error.in_element(number))?;
    }
    Ok(())
}

fn encode_fields(fields: &[Field], value: &Value, out: &mut Vec<u8>) -> Result<()> {
    let entries = value.as_object().ok_or_else(|| mismatch("an object", value))?;
    let mut used = 0;
    for Field { name, ty } in fields {
        match (entries.get(name), ty) {
            (Some(value), ty) => {
                used += 1;
                encode(ty, value, out).map_err(|error| error.in_entry(name))?;
            }
            (None, Type::Option(_)) => out.push(0),
            (None, _) => return Err(ConversionError::new(format!("the field {name:?} is missing"))),
        }
    }
    if used == entries.len() { Ok(()) } else { Err(unknown_field(fields, entries)) }
}

/// Names a field that the struct does not have.
fn unknown_field(fields: &[Field], entries: &Map<String, Value>) -> ConversionError {
    let unknown = entries.keys().find(|key| fields.iter().all(|field| field.name != **key));
    ConversionError::new(format!("there is no field {:?}", unknown.map_or("", String::as_str)))
}

fn encode_enum(ty: &Type, value: &Value, out: &mut Vec<u8>) -> Result<()> {
    let Type::Enum(variants) = ty else { return Err(mismatch(ty.word(), value)) };
    let (name, held) = match value {
        Value::String(name) => (name, &Value::Null),
        Value::Object(entries) if entries.len() == 1 => match entries.iter().next() {
            Some(entry) => entry,
            None => return Err(mismatch("a variant", value)),
        },
        _ => return Err(mismatch("a variant's name, or an object with it as the only entry", value)),
    };
    let Some((index, variant)) = variants.iter().enumerate().find(|(_, variant)| variant.name == *name) else {
        return Err(ConversionError::new(format!("there is no variant {name:?}")));
    };
    encode_length(index, out);
    match &variant.holds {
        Holds::Nothing => encode(&Type::Unit, held, out),
        Holds::One(ty) => encode(ty, held, out),
        Holds::Tuple(types) => encode_tuple(types, held, out),
        Holds::Fields(fields) => encode_fields(fields, held, out),
    }
    .map_err(|error| error.in_entry(name))
}

/// Encodes a map's key, which is an entry's name in JSON.
fn encode_key(ty: &Type, name: &str, out: &mut Vec<u8>) -> Result<()> {
    match (ty, name) {
        (Type::Bool, "false" | "true") => {
            out.push((name == "true").into());
            Ok(())
        }
        (Type::Bool, _) => Err(ConversionError::new("expected true or false as the entry's name")),
        (Type::String | Type::Char, _) => encode(ty, &Value::String(name.to_owned()), out),
        _ => encode_integer(ty, &Value::String(name.to_owned()), true, out),
    }
}

/// Encodes an integer from a number, or from its digits where these are needed or, in `text`, allowed.
fn encode_integer(ty: &Type, value: &Value, text: bool, out: &mut Vec<u8>) -> Result<()> {
    match ty {
        Type::U8 => out.push(integer::<u8>(ty, value, text)?),
        Type::U16 => encode_varint(integer::<u16>(ty, value, text)?.into(), out),
        Type::U32 => encode_varint(integer::<u32>(ty, value, text)?.into(), out),
        Type::U64 | Type::Usize => encode_varint(integer::<u64>(ty, value, true)?.into(), out),
        Type::U128 => encode_varint(integer::<u128>(ty, value, true)?, out),
        Type::I8 => out.push(integer::<i8>(ty, value, text)?.cast_unsigned()),
        Type::I16 => encode_varint(zigzag(integer::<i16>(ty, value, text)?.into()), out),
        Type::I32 => encode_varint(zigzag(integer::<i32>(ty, value, text)?.into()), out),
        Type::I64 | Type::Isize => encode_varint(zigzag(integer::<i64>(ty, value, true)?.into()), out),
        Type::I128 => encode_varint(zigzag(integer::<i128>(ty, value, true)?), out),
        _ => return Err(mismatch(ty.word(), value)),
    }
    Ok(())
}

/// The integer that a number is, or a string of digits if `text` allows that.
fn integer<T: TryFrom<u64> + TryFrom<i64> + FromStr>(ty: &Type, value: &Value, text: bool) -> Result<T> {
    let found = match value {
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(number), _) => T::try_from(number).ok(),
            (None, Some(number)) => T::try_from(number).ok(),
            (None, None) => None,
        },
        Value::String(digits) if text => digits.parse().ok(),
        _ => None,
    };
    found.ok_or_else(|| mismatch(ty.word(), value))
}

fn float(ty: &Type, value: &Value) -> Result<f64> {
    let found = match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => match text.as_str() {
            "NaN" => Some(f64::NAN),
            "inf" => Some(f64::INFINITY),
            "-inf" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        _ => None,
    };
    found.ok_or_else(|| mismatch(ty.word(), value))
}

/// A signed integer as the wire has it: its sign in the lowest bit. The same at every width.
const fn zigzag(number: i128) -> u128 {
    (number << 1 ^ number >> 127).cast_unsigned()
}

fn encode_varint(mut number: u128, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn encode_length(length: usize, out: &mut Vec<u8>) {
    encode_varint(length as u128, out);
}

fn encode_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    encode_length(bytes.len(), out);
    out.extend_from_slice(bytes);
}

/// Says what was expected instead of this value.
fn mismatch(expected: &str, value: &Value) -> ConversionError {
    ConversionError::new(match value {
        Value::Null => format!("expected {expected}, found null"),
        Value::Bool(found) => format!("expected {expected}, found {found}"),
        Value::Number(found) => format!("expected {expected}, found {found}"),
        Value::String(_) => format!("expected {expected}, found a string"),
        Value::Array(_) => format!("expected {expected}, found an array"),
        Value::Object(_) => format!("expected {expected}, found an object"),
    })
}
