//! From text to [`Type`] and [`Signature`].

use super::{Field, Holds, Parameter, ParseError, Signature, Type, Variant};
use coracle_abi::note::FunctionNote;
use coracle_abi::signature::{MAX_DEPTH, MAX_SIGNATURE_BYTES, is_bare};
use std::collections::HashSet;

type Result<T> = std::result::Result<T, ParseError>;

impl Signature {
    /// Takes a function's note apart.
    ///
    /// Arguments and parameters are matched as people see them: where one name stands for several arguments, or for
    /// none, there is one parameter, which is a tuple or unit.
    ///
    /// # Errors
    /// If the arguments or the result are not as the grammar says, or the names are not as many as the parameters.
    pub fn from_note(note: &FunctionNote<'_>) -> Result<Self> {
        let types = Parser::whole(note.args, |parser| {
            parser.expect("(")?;
            parser.types_until(")", 0)
        })?;
        let result = Type::parse(note.result)?;
        let names: Vec<_> = note.parameters.split(',').filter(|it| !it.is_empty()).collect();
        let parameters = match (&names[..], types.len()) {
            ([], _) => types.into_iter().map(|ty| Parameter { name: None, ty }).collect(),
            ([name], 0) => vec![Parameter { name: Some((*name).to_owned()), ty: Type::Unit }],
            ([name], 2..) => vec![Parameter { name: Some((*name).to_owned()), ty: Type::Tuple(types) }],
            (names, count) if names.len() == count => {
                names.iter().zip(types).map(|(name, ty)| Parameter { name: Some((*name).to_owned()), ty }).collect()
            }
            _ => return Err(ParseError { at: 0, message: "not as many names as arguments" }),
        };
        Ok(Self { name: note.name.to_owned(), parameters, result })
    }
}

impl Type {
    /// Reads a type as the signature's grammar writes it.
    ///
    /// ```
    /// use coracle::dynamic::Type;
    /// let ty = Type::parse("{name:string,tags:[string]}")?;
    /// assert_eq!(ty.to_string(), "{name: string, tags: [string]}");
    /// # Ok::<(), coracle::dynamic::ParseError>(())
    /// ```
    ///
    /// # Errors
    /// If it is not one, is longer than a signature can be, nests too deep, or names two fields or variants alike.
    pub fn parse(text: &str) -> Result<Self> {
        Parser::whole(text, |parser| parser.ty(0))
    }
}

struct Parser<'t> {
    text: &'t str,
    at: usize, // Invariant: at a character of the text, or its end.
}

impl<'t> Parser<'t> {
    /// What `parse` makes of all of the text.
    fn whole<T>(text: &'t str, parse: impl Fn(&mut Self) -> Result<T>) -> Result<T> {
        let mut parser = Self { text, at: 0 };
        if text.len() > MAX_SIGNATURE_BYTES {
            return parser.fail("the text is longer than 16 KiB");
        }
        let parsed = parse(&mut parser)?;
        if parser.rest().is_empty() { Ok(parsed) } else { parser.fail("something follows the type") }
    }

    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn fail<T>(&self, message: &'static str) -> Result<T> {
        Err(ParseError { at: self.at, message })
    }

    /// Steps over `token` if it is next.
    fn take(&mut self, token: &str) -> bool {
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    fn expect(&mut self, token: &'static str) -> Result<()> {
        if self.take(token) { Ok(()) } else { self.fail("a bracket, comma or colon is missing") }
    }

    fn ty(&mut self, depth: usize) -> Result<Type> {
        if depth > MAX_DEPTH {
            return self.fail("the type nests too deep");
        }
        let inner = depth + 1;
        if self.take("(") {
            return self.tuple(inner);
        }
        if self.take("[") {
            let item = self.ty(inner)?;
            self.expect("]")?;
            return Ok(Type::Seq(Box::new(item)));
        }
        if self.take("option<") {
            let some = self.ty(inner)?;
            self.expect(">")?;
            return Ok(Type::Option(Box::new(some)));
        }
        if self.take("map<") {
            let key = self.ty(inner)?;
            self.expect(",")?;
            let value = self.ty(inner)?;
            self.expect(">")?;
            return Ok(Type::Map(Box::new(key), Box::new(value)));
        }
        if self.take("enum{") {
            return self.variants(inner);
        }
        if self.take("{") {
            return Ok(Type::Struct(self.fields(inner)?));
        }
        self.word()
    }

    /// `bool`, `i32` and all others that are one word.
    fn word(&mut self) -> Result<Type> {
        let rest = self.rest();
        let word = &rest[..rest.find(|it: char| !it.is_ascii_alphanumeric()).unwrap_or(rest.len())];
        let Some(scalar) = Type::SCALARS.iter().find(|it| it.word() == word) else {
            return self.fail("no type is written like this");
        };
        self.at += word.len();
        Ok(scalar.clone())
    }

    /// The rest of a tuple, or of unit.
    fn tuple(&mut self, depth: usize) -> Result<Type> {
        if self.take(")") {
            return Ok(Type::Unit);
        }
        let mut items = vec![self.ty(depth)?];
        if self.take(",)") {
            return Ok(Type::Tuple(items));
        }
        self.expect(",")?;
        items.extend(self.types_until(")", depth)?);
        match items.len() {
            1 => self.fail("a type is missing"),
            _ => Ok(Type::Tuple(items)),
        }
    }

    /// Types with commas between them, if there are any, and what closes them.
    fn types_until(&mut self, close: &'static str, depth: usize) -> Result<Vec<Type>> {
        self.until(close, |parser| parser.ty(depth))
    }

    /// The rest of a struct.
    fn fields(&mut self, depth: usize) -> Result<Vec<Field>> {
        let mut names = HashSet::new();
        self.until("}", |parser| {
            let name = parser.new_name(&mut names)?;
            parser.expect(":")?;
            Ok(Field { name, ty: parser.ty(depth)? })
        })
    }

    /// The rest of an enum.
    fn variants(&mut self, depth: usize) -> Result<Type> {
        let mut names = HashSet::new();
        let variants = self.until("}", |parser| {
            let name = parser.new_name(&mut names)?;
            let holds = if parser.take("{") {
                Holds::Fields(parser.fields(depth)?)
            } else if parser.take("(") {
                let mut items = parser.types_until(")", depth)?;
                match items.pop() {
                    Some(one) if items.is_empty() => Holds::One(one),
                    last => {
                        items.extend(last);
                        Holds::Tuple(items)
                    }
                }
            } else {
                Holds::Nothing
            };
            Ok(Variant { name, holds })
        })?;
        Ok(Type::Enum(variants))
    }

    /// Items with commas between them, if there are any, and what closes them.
    fn until<T>(&mut self, close: &'static str, mut item: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut items = Vec::new();
        if self.take(close) {
            return Ok(items);
        }
        loop {
            items.push(item(self)?);
            if self.take(close) {
                return Ok(items);
            }
            self.expect(",")?;
        }
    }

    /// A name that is not in `names` yet.
    fn new_name(&mut self, names: &mut HashSet<String>) -> Result<String> {
        let start = self.at;
        let name = if self.take("\"") { self.quoted()? } else { self.bare()? };
        if !names.insert(name.clone()) {
            return Err(ParseError { at: start, message: "the name occurs twice" });
        }
        Ok(name)
    }

    fn bare(&mut self) -> Result<String> {
        let rest = self.rest();
        let name = &rest[..rest.find(|it: char| !is_bare(it.encode_utf8(&mut [0; 4]))).unwrap_or(rest.len())];
        if name.is_empty() {
            return self.fail("a name is missing");
        }
        self.at += name.len();
        Ok(name.to_owned())
    }

    /// The rest of a name in quotes.
    fn quoted(&mut self) -> Result<String> {
        let mut name = String::new();
        loop {
            let Some(character) = self.character() else { return self.fail("a name does not end") };
            match character {
                '"' => return Ok(name),
                '\\' => match self.character() {
                    Some(escaped @ ('"' | '\\')) => name.push(escaped),
                    Some('x') => {
                        let digit = |it: Option<char>| it.and_then(|it| it.to_digit(16));
                        let (Some(high @ ..8), Some(low)) = (digit(self.character()), digit(self.character())) else {
                            return self.fail("an escape is not two hexadecimal digits below 80");
                        };
                        name.extend(char::from_u32(high << 4 | low));
                    }
                    _ => return self.fail("there is no such escape"),
                },
                character if character.is_control() => return self.fail("a control character is not escaped"),
                character => name.push(character),
            }
        }
    }

    /// Steps over the next character.
    fn character(&mut self) -> Option<char> {
        let character = self.rest().chars().next()?;
        self.at += character.len_utf8();
        Some(character)
    }
}
