//! Attachments as a worker's own type, in either spelling.
//!
//! Python writes attachments now by alias (`rtspUrl`), now by field name (`rtsp_url`), and a YAML file may use both.
//! serde tells a deserialiser which field names a struct expects, so each key that a struct does not know is tried
//! in the other spelling. Nested structs are read the same way; plain maps are left as they are.

use std::fmt;

use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor,
};
use serde_json::{Error, Map, Value};

/// Attachments that do not fit the worker's type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("attachments do not fit: {0}")]
pub struct BadAttachments(String);

/// Reads attachments; none are read as an empty object.
pub fn read<T: DeserializeOwned>(attachments: Option<&Map<String, Value>>) -> Result<T, BadAttachments> {
    let value = Value::Object(attachments.cloned().unwrap_or_default());
    T::deserialize(Spelled(value)).map_err(|error| BadAttachments(error.to_string()))
}

/// A value whose structs may be spelled either way.
struct Spelled(Value);

struct Elements(std::vec::IntoIter<Value>);

struct Entries {
    rest: serde_json::map::IntoIter,
    /// The names that the struct expects; none for a plain map.
    fields: &'static [&'static str],
    value: Option<Value>,
}

impl Entries {
    fn key(&self, given: String) -> String {
        if self.fields.contains(&given.as_str()) {
            return given;
        }
        for other in [camel_case(&given), snake_case(&given)] {
            if self.fields.contains(&other.as_str()) {
                return other;
            }
        }
        given
    }
}

fn camel_case(name: &str) -> String {
    let mut camel = String::with_capacity(name.len());
    let mut upper = false;
    for character in name.chars() {
        match character {
            '_' if !camel.is_empty() => upper = true,
            _ if upper => {
                camel.extend(character.to_uppercase());
                upper = false;
            }
            _ => camel.push(character),
        }
    }
    camel
}

fn snake_case(name: &str) -> String {
    let mut snake = String::with_capacity(name.len() + 4);
    for character in name.chars() {
        if character.is_uppercase() {
            if !snake.is_empty() {
                snake.push('_');
            }
            snake.extend(character.to_lowercase());
        } else {
            snake.push(character);
        }
    }
    snake
}

impl<'de> SeqAccess<'de> for Elements {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        self.0.next().map(|value| seed.deserialize(Spelled(value))).transpose()
    }
}

impl<'de> MapAccess<'de> for Entries {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        let Some((key, value)) = self.rest.next() else { return Ok(None) };
        self.value = Some(value);
        seed.deserialize(MapKey(self.key(key))).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let value = self.value.take().ok_or_else(|| de::Error::custom("a value was read before its key"))?;
        seed.deserialize(Spelled(value))
    }
}

/// A key: numbers are keys too, as in `HashMap<u32, _>`.
struct MapKey(String);

macro_rules! number_keys {
    ($($method:ident)+) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            match serde_json::from_str::<serde_json::Number>(&self.0) {
                Ok(number) => Value::Number(number).deserialize_any(visitor),
                Err(_) => visitor.visit_string(self.0),
            }
        }
    )+};
}

impl<'de> Deserializer<'de> for MapKey {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_string(self.0)
    }

    number_keys! {
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_enum(self.0.into_deserializer())
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    serde::forward_to_deserialize_any! {
        bool f32 f64 char str string bytes byte_buf option unit unit_struct seq tuple tuple_struct map struct
        identifier ignored_any
    }
}

impl<'de> Deserializer<'de> for Spelled {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Array(elements) => visitor.visit_seq(Elements(elements.into_iter())),
            Value::Object(map) => {
                visitor.visit_map(Entries { rest: map.into_iter(), fields: &[], value: None })
            }
            plain => plain.deserialize_any(visitor),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.0 {
            Value::Object(map) => visitor.visit_map(Entries { rest: map.into_iter(), fields, value: None }),
            other => Spelled(other).deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.0.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.0.deserialize_enum(name, variants, visitor)
    }

    /// A worker without parameters takes no attachments, or leaves those that are there alone.
    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.0 {
            Value::Object(_) | Value::Null => visitor.visit_unit(),
            other => Spelled(other).deserialize_any(visitor),
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit seq tuple
        tuple_struct map identifier ignored_any
    }
}

impl fmt::Debug for Spelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    struct Camera {
        rtsp_url: String,
        #[serde(default)]
        fix_frame: u32,
        #[serde(default)]
        region: Option<Region>,
        #[serde(default)]
        labels: HashMap<String, u8>,
        #[serde(default)]
        by_number: HashMap<u16, Vec<Region>>,
        #[serde(default)]
        kind: Kind,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct Region {
        top_left: (i32, i32),
    }

    #[derive(Debug, PartialEq, Deserialize, Default)]
    #[serde(rename_all = "camelCase")]
    enum Kind {
        #[default]
        Still,
        Moving {
            by_how_much: f64,
        },
    }

    fn parse(value: Value) -> Result<Camera, BadAttachments> {
        read(value.as_object())
    }

    #[test]
    fn either_spelling_fits() {
        let expected = Camera {
            rtsp_url: "rtsp://a".into(),
            fix_frame: 30,
            region: Some(Region { top_left: (1, 2) }),
            labels: HashMap::from([("snake_key".into(), 1), ("camelKey".into(), 2)]),
            by_number: HashMap::from([(7, vec![Region { top_left: (3, 4) }])]),
            kind: Kind::Moving { by_how_much: 1.5 },
        };
        let by_alias = json!({
            "rtspUrl": "rtsp://a", "fixFrame": 30, "region": {"topLeft": [1, 2]},
            "labels": {"snake_key": 1, "camelKey": 2}, "byNumber": {"7": [{"topLeft": [3, 4]}]},
            "kind": {"moving": {"by_how_much": 1.5}}
        });
        let by_name = json!({
            "rtsp_url": "rtsp://a", "fix_frame": 30, "region": {"top_left": [1, 2]},
            "labels": {"snake_key": 1, "camelKey": 2}, "by_number": {"7": [{"top_left": [3, 4]}]},
            "kind": {"moving": {"by_how_much": 1.5}}
        });
        assert_eq!(parse(by_alias).unwrap(), expected);
        assert_eq!(parse(by_name).unwrap(), expected);
    }

    #[test]
    fn what_does_not_fit_is_named() {
        for (value, says) in [
            (json!({}), "missing field `rtspUrl`"),
            (json!({"rtsp_url": 5}), "invalid type: integer `5`, expected a string"),
            (json!({"rtspUrl": "a", "fixFrme": 1}), "unknown field `fixFrme`"),
            (json!({"rtspUrl": "a", "rtsp_url": "b"}), "duplicate field `rtspUrl`"),
        ] {
            let error = parse(value).unwrap_err().to_string();
            assert!(error.starts_with("attachments do not fit: ") && error.contains(says), "{error}");
        }
        assert_eq!(read::<HashMap<String, Value>>(None).unwrap(), HashMap::new());
        #[derive(Debug, Deserialize)]
        struct Nothing;
        read::<Nothing>(None).unwrap();
        read::<Nothing>(json!({"left": "alone"}).as_object()).unwrap();
    }
}
