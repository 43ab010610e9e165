//! Key tables: the keys of a mapping, and the shape of each value.
//!
//! Why: the reader and the JSON Schema must know the same keys; one table for each mapping serves both.
//! From: JSON Schema 2020-12, as far as documents need it; the YAML language server reads it.
//! Not here: reading values (`read`), and what they mean (`policy` and `scenario`).
//! Invariant: the schema has exactly the keys that [`Reader::fields`](crate::Reader::fields) takes.

use std::ptr;

use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

/// The keys of one kind of mapping.
#[derive(Debug)]
pub struct Mapping {
    /// Its name in the schema.
    pub name: &'static str,
    /// A description of such mappings.
    pub about: &'static str,
    /// Its keys, in the order in which messages list them.
    pub own: &'static [Key],
    /// Mappings whose keys it has as well.
    pub more: &'static [&'static Mapping],
}

/// A key of a mapping.
#[derive(Debug)]
pub struct Key {
    /// The key itself.
    pub name: &'static str,
    /// A description of its value.
    pub about: &'static str,
    /// A value to add, for a key that must be there.
    pub needed: Option<&'static str>,
    /// The shape of its value.
    pub shape: Shape,
}

/// The shape of a value.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// Any value; its own reader says what is wrong with it.
    Any,
    /// Such a value, which another reader reads.
    Elsewhere(&'static Shape),
    /// A text.
    Text,
    /// A text, or a number that is read as a text.
    Scalar,
    /// A text that matches a regular expression.
    Pattern(&'static str),
    /// A type of `units`.
    Unit(fn() -> (String, Value)),
    /// `true` or `false`.
    Flag,
    /// A whole number, with its least and greatest value.
    Whole(u64, u64),
    /// A number, with its least and greatest value.
    Number(f64, f64),
    /// A part of a whole: `0.1%`, or a number.
    Part,
    /// One of these words, each with what it means.
    Words(&'static [(&'static str, &'static str)]),
    /// One of these words, which the program lists.
    Listed(fn() -> Vec<&'static str>),
    /// A value of this shape, or nothing.
    Optional(&'static Shape),
    /// A mapping of these keys.
    Map(&'static Mapping),
    /// One of the mapping's keys, and no two.
    OneOf(&'static Mapping),
    /// A mapping from names to values of this shape.
    Named(&'static Shape),
    /// A mapping, of one key at least, from keys that match a regular expression to values of this shape; with an example of
    /// such a key.
    Keyed(&'static str, &'static str, &'static Shape),
    /// A mapping from one name to a value of this shape.
    NamedOnce(&'static Shape),
    /// A list of values of this shape, with the least and the greatest number of them.
    List(&'static Shape, usize, usize),
    /// A value of this shape, or a list of them, one at least.
    OneOrMore(&'static Shape),
    /// A value of one of these shapes.
    Either(&'static [Shape]),
    /// A mapping of any of these keys, with other values.
    KeysOf(&'static Mapping),
}

/// Declares the key tables of mappings.
///
/// ```
/// use plimsoll_document::{Shape, mapping};
/// mapping! {
///     /// A sheet of paper.
///     static SHEET = "Sheet" {
///         /// How thick it is; it has to be stated.
///         thickness = "100": Shape::Whole(1, 1_000),
///         /// The text on it.
///         text: Shape::Text,
///     }
/// }
/// assert!(SHEET.key("text").is_some() && SHEET.key("txet").is_none());
/// ```
#[macro_export]
macro_rules! mapping {
    ($(
        $(#[doc = $about:literal])*
        $vis:vis static $table:ident = $name:literal $(+ $more:ident)* {
            $($(#[doc = $key_about:literal])* $key:ident $(= $needed:literal)? : $shape:expr),* $(,)?
        }
    )*) => {$(
        $(#[doc = $about])*
        $vis static $table: $crate::Mapping = $crate::Mapping {
            name: $name,
            about: concat!($($about),*),
            own: &[$($crate::Key {
                name: stringify!($key),
                about: concat!($($key_about),*),
                needed: $crate::mapping!(@needed $($needed)?),
                shape: $shape,
            }),*],
            more: &[$(&$more),*],
        };
    )*};
    (@needed) => { None };
    (@needed $needed:literal) => { Some($needed) };
}

impl Mapping {
    /// All its keys.
    pub fn keys(&'static self) -> impl Iterator<Item = &'static Key> + Clone {
        self.more.iter().flat_map(|more| more.own).chain(self.own)
    }

    /// The key of this name.
    #[must_use]
    pub fn key(&'static self, name: &str) -> Option<&'static Key> {
        self.keys().find(|key| key.name == name)
    }

    /// The JSON Schema of files that are such a mapping.
    #[must_use]
    pub fn schema(&'static self, title: &str) -> Value {
        let mut definitions = Definitions::default();
        let mut schema = self.define(&mut definitions, false);
        schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
        schema["title"] = title.into();
        schema["$defs"] = definitions.schemas.into();
        schema
    }

    fn define(&'static self, definitions: &mut Definitions, one_of: bool) -> Value {
        let mut properties = Map::new();
        for key in self.keys() {
            let property = described(key.shape.schema(definitions), key.about);
            properties.insert(key.name.to_owned(), property);
        }
        let mut needed = self.keys().filter(|key| key.needed.is_some()).map(|key| key.name).peekable();
        let kind =
            if one_of || needed.peek().is_some() { json!("object") } else { json!(["object", "null"]) };
        let mut schema = json!({"type": kind, "additionalProperties": false, "properties": properties});
        if needed.peek().is_some() {
            schema["required"] = needed.collect();
        }
        if one_of {
            (schema["minProperties"], schema["maxProperties"]) = (1.into(), 1.into());
        }
        described(schema, self.about)
    }
}

/// The named parts of a schema.
#[derive(Default)]
struct Definitions {
    schemas: Map<String, Value>,
    /// The tables that are defined, or being defined: a mapping may hold itself.
    tables: Vec<&'static Mapping>,
}

impl Definitions {
    /// Whether a table is not defined yet. Two tables of one name are a mistake of ours.
    fn is_new(&mut self, table: &'static Mapping) -> bool {
        let known = self.tables.iter().find(|known| known.name == table.name);
        let unique = known.map_or(!self.schemas.contains_key(table.name), |known| ptr::eq(*known, table));
        assert!(unique, "`{}` names two tables", table.name);
        let new = known.is_none();
        if new {
            self.tables.push(table);
        }
        new
    }

    fn unit(&mut self, name: String, schema: Value) {
        let unique = self.schemas.get(&name).is_none_or(|known| *known == schema);
        assert!(
            unique && !self.tables.iter().any(|table| table.name == name),
            "`{name}` names a unit and a table"
        );
        self.schemas.insert(name, schema);
    }
}

impl Shape {
    /// A type that has a schema, such as a unit.
    pub fn unit<T: JsonSchema>() -> (String, Value) {
        let schema = SchemaGenerator::default().into_root_schema_for::<T>().to_value();
        let kept = ["type", "pattern", "description"].map(|key| (key.to_owned(), schema[key].clone()));
        (T::schema_name().into_owned(), Value::Object(kept.into_iter().collect()))
    }

    /// The schema of a value of this shape; a schema with a name is defined once.
    fn schema(self, definitions: &mut Definitions) -> Value {
        match self {
            Self::Any => json!({}),
            Self::Elsewhere(shape) => shape.schema(definitions),
            Self::Text => json!({"type": "string"}),
            Self::Pattern(pattern) => json!({"type": "string", "pattern": pattern}),
            Self::Unit(unit) => {
                let (name, schema) = unit();
                let reference = format!("#/$defs/{name}");
                definitions.unit(name, schema);
                json!({"$ref": reference})
            }
            Self::Flag => json!({"type": "boolean"}),
            Self::Whole(least, most) => json!({"type": "integer", "minimum": least, "maximum": most}),
            Self::Number(least, most) => json!({"type": "number", "minimum": least, "maximum": most}),
            Self::Part | Self::Scalar => json!({"type": ["string", "number"]}),
            Self::Words(words) if words.iter().all(|(_, about)| about.is_empty()) => {
                json!({"type": "string", "enum": words.iter().map(|(word, _)| word).collect::<Vec<_>>()})
            }
            Self::Words(words) => {
                let each = words.iter().map(|(word, about)| described(json!({"const": word}), about));
                json!({"type": "string", "oneOf": each.collect::<Vec<_>>()})
            }
            Self::Listed(words) => json!({"type": "string", "enum": words()}),
            Self::Optional(shape) => json!({"anyOf": [shape.schema(definitions), {"type": "null"}]}),
            Self::Map(mapping) | Self::OneOf(mapping) => {
                if definitions.is_new(mapping) {
                    let schema = mapping.define(definitions, matches!(self, Self::OneOf(_)));
                    definitions.schemas.insert(mapping.name.to_owned(), schema);
                }
                json!({"$ref": format!("#/$defs/{}", mapping.name)})
            }
            Self::Named(shape) => {
                json!({"type": ["object", "null"], "additionalProperties": shape.schema(definitions)})
            }
            Self::Keyed(pattern, _, shape) => json!({
                "type": "object",
                "minProperties": 1,
                "patternProperties": {pattern: shape.schema(definitions)},
                "additionalProperties": false,
            }),
            Self::NamedOnce(shape) => json!({
                "type": "object",
                "minProperties": 1,
                "maxProperties": 1,
                "additionalProperties": shape.schema(definitions),
            }),
            Self::List(shape, least, most) => {
                let mut list = json!({"type": "array", "items": shape.schema(definitions)});
                if least > 0 {
                    list["minItems"] = least.into();
                }
                if most < usize::MAX {
                    list["maxItems"] = most.into();
                }
                list
            }
            Self::OneOrMore(shape) => {
                let one = shape.schema(definitions);
                json!({"anyOf": [one, {"type": "array", "items": one, "minItems": 1}]})
            }
            Self::Either(shapes) => {
                let each = shapes.iter().map(|shape| shape.schema(definitions));
                json!({"anyOf": each.collect::<Vec<_>>()})
            }
            Self::KeysOf(mapping) => {
                let keys: Vec<&str> = mapping.keys().map(|key| key.name).collect();
                json!({"type": "object", "propertyNames": {"enum": keys}})
            }
        }
    }
}

fn described(mut schema: Value, about: &str) -> Value {
    if !about.is_empty() {
        schema["description"] = about.trim().into();
    }
    schema
}
