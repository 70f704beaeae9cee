//! From bytes to JSON.
//!
//! The bytes are a guest's. What each value costs in memory is taken from a budget before it is made, so that neither
//! memory nor time depend on a number that the bytes merely claim.

use super::{ConversionError, Field, Holds, Type};
use serde_json::{Map, Number, Value};

/// About how much memory a decoded value can take. Enough for four million numbers.
pub const MAX_JSON_BYTES: usize = 256 << 20;

/// What a value costs beside its text: itself, and its share of what holds it.
const VALUE_BYTES: usize = 64;

type Result<T> = std::result::Result<T, ConversionError>;

impl Type {
    /// Decodes a value of this type, which must take all of the bytes.
    ///
    /// ```
    /// # use coracle::dynamic::Type;
    /// # use serde_json::json;
    /// let ty = Type::parse("(i32,option<string>)").unwrap();
    /// assert_eq!(ty.decode_json(&[1, 1, 2, b'h', b'i']).unwrap(), json!([-1, "hi"]));
    /// let error = ty.decode_json(&[1, 1, 2, b'h']).unwrap_err();
    /// assert_eq!(error.to_string(), "$[1]: the bytes end within it");
    /// ```
    ///
    /// # Errors
    /// If the bytes are no such value, or one that needs more than [`MAX_JSON_BYTES`].
    pub fn decode_json(&self, bytes: &[u8]) -> Result<Value> {
        self.decode_within(MAX_JSON_BYTES, bytes)
    }

    /// As [`Self::decode_json`], with another limit.
    pub(super) fn decode_within(&self, budget: usize, bytes: &[u8]) -> Result<Value> {
        let mut reader = Reader { bytes, budget };
        let value = reader.value(self)?;
        match reader.bytes.len() {
            0 => Ok(value),
            left => Err(ConversionError::new(format!("{left} bytes are left over after it"))),
        }
    }
}

struct Reader<'b> {
    bytes: &'b [u8],
    budget: usize,
}

impl<'b> Reader<'b> {
    fn value(&mut self, ty: &Type) -> Result<Value> {
        self.spend(VALUE_BYTES)?;
        Ok(match ty {
            Type::Bool => Value::Bool(self.flag()?),
            Type::I8 => self.byte()?.cast_signed().into(),
            Type::U8 => self.byte()?.into(),
            Type::U16 => unsigned(self.varint(16)?),
            Type::U32 => unsigned(self.varint(32)?),
            Type::U64 | Type::Usize => unsigned(self.varint(64)?),
            Type::U128 => unsigned(self.varint(128)?),
            Type::I16 => signed(self.varint(16)?),
            Type::I32 => signed(self.varint(32)?),
            Type::I64 | Type::Isize => signed(self.varint(64)?),
            Type::I128 => signed(self.varint(128)?),
            Type::F32 => float(f32::from_le_bytes(self.array()?).into()),
            Type::F64 => float(f64::from_le_bytes(self.array()?)),
            Type::Char => {
                let text = self.text()?;
                match text.chars().count() {
                    1 => text.into(),
                    _ => return Err(ConversionError::new("expected one character")),
                }
            }
            Type::String => {
                let text = self.text()?;
                self.spend(text.len())?;
                text.into()
            }
            Type::Bytes => {
                let bytes = self.counted()?;
                self.spend(bytes.len().saturating_mul(VALUE_BYTES))?;
                bytes.into()
            }
            Type::Unit => Value::Null,
            Type::Option(some) => match self.flag()? {
                true => self.value(some)?,
                false => Value::Null,
            },
            Type::Seq(item) => {
                let count = self.varint(64)?;
                self.elements(count, |reader, _| reader.value(item))?
            }
            Type::Tuple(types) => self.tuple(types)?,
            Type::Map(key, item) => self.map(key, item)?,
            Type::Struct(fields) => self.fields(fields)?,
            Type::Enum(variants) => {
                let index = self.varint(32)?;
                let variant = usize::try_from(index).ok().and_then(|index| variants.get(index));
                let Some(variant) = variant else {
                    return Err(ConversionError::new(format!("there is no variant number {index}")));
                };
                let name = &variant.name;
                self.spend(name.len())?;
                let held = match &variant.holds {
                    Holds::Nothing => return Ok(name.as_str().into()),
                    Holds::One(ty) => self.value(ty),
                    Holds::Tuple(types) => self.tuple(types),
                    Holds::Fields(fields) => self.fields(fields),
                };
                Map::from_iter([(name.clone(), held.map_err(|error| error.in_entry(name))?)]).into()
            }
            Type::Schema => return Err(ConversionError::new("a description of a type has no JSON form")),
        })
    }

    fn tuple(&mut self, types: &[Type]) -> Result<Value> {
        self.elements(types.len() as u128, |reader, number| reader.value(&types[number]))
    }

    fn fields(&mut self, fields: &[Field]) -> Result<Value> {
        let mut object = Map::new();
        for Field { name, ty } in fields {
            self.spend(name.len())?;
            object.insert(name.clone(), self.value(ty).map_err(|error| error.in_entry(name))?);
        }
        Ok(object.into())
    }

    fn map(&mut self, key: &Type, item: &Type) -> Result<Value> {
        let count = self.varint(64)?;
        if !key.is_json_key() {
            return self.elements(count, |reader, _| {
                reader.elements(2, |reader, side| reader.value(if side == 0 { key } else { item }))
            });
        }
        let mut object = Map::new();
        for number in 0..self.affordable(count)? {
            let name = match self.value(key).map_err(|error| error.in_element(number))? {
                Value::String(name) => name,
                other => other.to_string(),
            };
            let value = self.value(item).map_err(|error| error.in_entry(&name))?;
            object.insert(name, value);
        }
        Ok(object.into())
    }

    /// An array of what `element` reads, which must be at least one value.
    fn elements(&mut self, count: u128, element: impl Fn(&mut Self, usize) -> Result<Value>) -> Result<Value> {
        let mut items = Vec::new();
        for number in 0..self.affordable(count)? {
            items.push(element(self, number).map_err(|error| error.in_element(number))?);
        }
        Ok(items.into())
    }

    /// The count, if the budget is enough for as many of the smallest values.
    fn affordable(&self, count: u128) -> Result<usize> {
        usize::try_from(count).ok().filter(|&count| count <= self.budget / VALUE_BYTES).ok_or_else(too_large)
    }

    /// Takes memory from the budget.
    fn spend(&mut self, bytes: usize) -> Result<()> {
        self.budget = self.budget.checked_sub(bytes).ok_or_else(too_large)?;
        Ok(())
    }

    fn byte(&mut self) -> Result<u8> {
        self.array().map(|[byte]| byte)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (array, rest) = self.bytes.split_first_chunk().ok_or_else(ends)?;
        self.bytes = rest;
        Ok(*array)
    }

    fn flag(&mut self) -> Result<bool> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(ConversionError::new(format!("expected 0 or 1, found {other}"))),
        }
    }

    /// An unsigned integer of so many bits, not necessarily in its shortest form.
    fn varint(&mut self, bits: u32) -> Result<u128> {
        let mut number = 0;
        for shift in (0..bits).step_by(7) {
            let byte = self.byte()?;
            let part = u128::from(byte & 0x7f);
            if shift + 7 > bits && part >> (bits - shift) != 0 {
                break;
            }
            number |= part << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(ConversionError::new(format!("an integer has more than {bits} bits")))
    }

    /// A length and as many bytes.
    fn counted(&mut self) -> Result<&'b [u8]> {
        let length = usize::try_from(self.varint(64)?).map_err(|_| ends())?;
        let (counted, rest) = self.bytes.split_at_checked(length).ok_or_else(ends)?;
        self.bytes = rest;
        Ok(counted)
    }

    fn text(&mut self) -> Result<&'b str> {
        str::from_utf8(self.counted()?).map_err(|_| ConversionError::new("it is not UTF-8"))
    }
}

fn ends() -> ConversionError {
    ConversionError::new("the bytes end within it")
}

fn too_large() -> ConversionError {
    ConversionError::new("as JSON, the whole value takes too much memory: call the function with types instead")
}

fn unsigned(number: u128) -> Value {
    u64::try_from(number).map_or_else(|_| number.to_string().into(), Value::from)
}

/// What an integer is that has its sign in the lowest bit.
fn signed(zigzag: u128) -> Value {
    let number = (zigzag >> 1).cast_signed() ^ -(zigzag & 1).cast_signed();
    match (i64::try_from(number), u64::try_from(number)) {
        (Ok(number), _) => number.into(),
        (_, Ok(number)) => number.into(),
        _ => number.to_string().into(),
    }
}

fn float(number: f64) -> Value {
    // Rust writes `NaN`, `inf` and `-inf`, without the sign and the payload of a NaN.
    Number::from_f64(number).map_or_else(|| number.to_string().into(), Value::Number)
}
