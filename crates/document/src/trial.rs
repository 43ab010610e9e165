//! Documents that try every key of a table.
//!
//! Why: a key that the schema offers and no reader reads misleads authors; a list of keys in a test would state the language a
//! second time.
//! From: mutation testing: a value that is valid for no key must be refused at every key.
//! Not here: reading them (tests of `policy` and `scenario`).
//! Invariant: each key of each mapping that the table leads to is tried once, unless any value may stand there or another
//! reader reads it; and each mapping is tried with a key that it does not have.

use std::collections::BTreeSet;
use std::ops::Range;

use super::keys::{Mapping, Shape};

/// A document with one value that is valid for no key, or with one key that its mapping does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trial {
    /// The mapping, and the key in it.
    pub key: (&'static str, &'static str),
    /// The document.
    pub text: String,
    /// The value or key that must be refused.
    pub place: Range<usize>,
}

/// A value that is valid for no key.
const NOWHERE: &str = "[[{nowhere: [1]}]]";
/// A key that no table has.
const NO_KEY: &str = "no_such_key_anywhere";

impl Mapping {
    /// A document for each key that this mapping and those below it have. A reader that finds nothing wrong at a trial's
    /// place does not read the key, or takes keys that are not in the table.
    #[must_use]
    pub fn trials(&'static self) -> Vec<Trial> {
        let mut trials = Vec::new();
        self.try_keys(false, &["", ""], &mut BTreeSet::new(), &mut trials);
        trials
    }

    fn try_keys(
        &'static self,
        alone: bool,
        around: &[&str; 2],
        seen: &mut BTreeSet<&'static str>,
        trials: &mut Vec<Trial>,
    ) {
        if !seen.insert(self.name) {
            return;
        }
        self.try_own_keys(alone, around, trials);
        for key in self.keys() {
            let [before, after] = self.around(key.name, alone, around);
            key.shape.try_keys(&[&before, &after], seen, trials);
        }
    }

    /// Trials of this mapping's keys, without those of the mappings below it.
    fn try_own_keys(&'static self, alone: bool, around: &[&str; 2], trials: &mut Vec<Trial>) {
        for key in self.keys().filter(|key| !matches!(key.shape, Shape::Any | Shape::Elsewhere(_))) {
            let [before, after] = self.around(key.name, alone, around);
            let place = before.len()..before.len() + NOWHERE.len();
            let text = format!("{before}{NOWHERE}{after}\n");
            trials.push(Trial { key: (self.name, key.name), text, place });
        }
        let [before, after] = self.around(NO_KEY, alone, around);
        let end = before.len() - ": ".len();
        let place = end - NO_KEY.len()..end;
        trials.push(Trial { key: (self.name, NO_KEY), text: format!("{before}1{after}\n"), place });
    }

    /// The text before and after a key's value, with the other keys that the mapping needs.
    fn around(&'static self, key: &str, alone: bool, [before, after]: &[&str; 2]) -> [String; 2] {
        let needed = self.keys().filter(|other| other.name != key && !alone);
        let others: String =
            needed.filter_map(|other| Some(format!("{}: {}, ", other.name, other.needed?))).collect();
        [format!("{before}{{{others}{key}: "), format!("}}{after}")]
    }
}

impl Shape {
    fn try_keys(
        self,
        [before, after]: &[&str; 2],
        seen: &mut BTreeSet<&'static str>,
        trials: &mut Vec<Trial>,
    ) {
        let within = |open: &str, close: &str| [format!("{before}{open}"), format!("{close}{after}")];
        match self {
            Self::Map(mapping) => mapping.try_keys(false, &[before, after], seen, trials),
            Self::OneOf(mapping) => mapping.try_keys(true, &[before, after], seen, trials),
            Self::Named(shape) | Self::NamedOnce(shape) => {
                let [before, after] = within("{a: ", "}");
                shape.try_keys(&[&before, &after], seen, trials);
            }
            Self::Keyed(_, example, shape) => {
                let [before, after] = within(&format!("{{{example}: "), "}");
                shape.try_keys(&[&before, &after], seen, trials);
            }
            Self::Optional(shape) | Self::OneOrMore(shape) => {
                shape.try_keys(&[before, after], seen, trials);
            }
            Self::List(shape, ..) => {
                let [before, after] = within("[", "]");
                shape.try_keys(&[&before, &after], seen, trials);
            }
            Self::Either(shapes) => {
                shapes.iter().for_each(|shape| shape.try_keys(&[before, after], seen, trials));
            }
            // The values are tried where the mapping itself stands.
            Self::KeysOf(mapping) => mapping.try_own_keys(false, &[before, after], trials),
            // Scalars hold no keys, and other readers' trials try what they read.
            Self::Any
            | Self::Elsewhere(_)
            | Self::Text
            | Self::Scalar
            | Self::Pattern(_)
            | Self::Unit(_)
            | Self::Flag
            | Self::Whole(..)
            | Self::Number(..)
            | Self::Part
            | Self::Words(_)
            | Self::Listed(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mark, Reader, Sources, mapping, parse, read_all};

    mapping! {
        static OUTER = "Outer" {
            /// Read by both readers below.
            read: Shape::Flag,
            /// Read by the first only.
            passed_over: Shape::Flag,
            /// Below it, `deep` is needed.
            inner: Shape::Named(&Shape::Map(&INNER)),
        }
        static SHAPES = "Shapes" {
            /// A mapping, or nothing.
            optional: Shape::Optional(&Shape::Map(&OPTIONAL)),
            /// A mapping, or a list of them.
            several: Shape::OneOrMore(&Shape::Map(&SEVERAL)),
            /// A mapping behind keys of a form.
            keyed: Shape::Keyed("^p[0-9]$", "p5", &Shape::Map(&KEYED)),
            /// Any keys of a mapping.
            of: Shape::KeysOf(&OF),
            /// A mapping of another reader.
            elsewhere: Shape::Elsewhere(&Shape::Map(&INNER)),
        }
        static OPTIONAL = "Optional" { a: Shape::Flag }
        static SEVERAL = "Several" { a: Shape::Flag }
        static KEYED = "KeyedMap" { a: Shape::Flag }
        static OF = "Of" { a: Shape::Map(&INNER) }
        static TWO_OF_ONE_NAME = "Twice" {
            one: Shape::Map(&INNER),
            two: Shape::Map(&OTHER_INNER),
        }
        static OTHER_INNER = "Inner" {}
        static INNER = "Inner" {
            /// A key that must be there.
            deep = "true": Shape::Flag,
        }
    }

    /// Keys whose trials a reader lets pass.
    fn passed(read: impl Fn(&mut Reader<()>, &crate::Tree)) -> Vec<(&'static str, &'static str)> {
        let passes = |trial: &Trial| {
            let sources = Sources::one("t.yaml", &trial.text);
            let tree = parse(&sources, crate::FileId(0)).expect("YAML");
            let ((), problems) = read_all(|reader| read(reader, &tree));
            problems.sorted().iter().all(|problem| !trial.place.contains(&(problem.at.offset as usize)))
        };
        OUTER.trials().into_iter().filter(passes).map(|trial| trial.key).collect()
    }

    fn flags(reader: &mut Reader<()>, tree: &crate::Tree, keys: &[&str]) {
        let fields = reader.fields(tree, Mark::default(), "the file", &OUTER);
        for key in keys {
            fields.get(key).map(|tree| reader.flag(tree, key));
        }
        let named =
            fields.get("inner").map(|tree| reader.map(&[tree], "`inner`", "names")).unwrap_or_default();
        for (_, tree) in named {
            let inner = reader.fields(tree, tree.at, "an inner one", &INNER);
            inner.get("deep").map(|tree| reader.flag(tree, "`deep`"));
        }
    }

    #[test]
    fn a_key_that_is_not_read_shows() {
        assert_eq!(OUTER.trials().len(), 6);
        assert_eq!(passed(|reader, tree| flags(reader, tree, &["read", "passed_over"])), []);
        assert_eq!(passed(|reader, tree| flags(reader, tree, &["read"])), [("Outer", "passed_over")]);
        let any_key = |reader: &mut Reader<()>, tree: &crate::Tree| {
            reader.map(&[tree], "it", "keys");
        };
        assert!(passed(any_key).contains(&("Outer", NO_KEY)));
    }

    #[test]
    fn a_mapping_is_tried_behind_every_shape() {
        let trials = SHAPES.trials();
        let text = |key| {
            let found = trials.iter().find(|trial| trial.key == key).unwrap_or_else(|| panic!("{key:?}"));
            assert!([NOWHERE, NO_KEY].contains(&&found.text[found.place.clone()]));
            found.text.trim().replace(NOWHERE, "X")
        };
        assert_eq!(text(("Optional", "a")), "{optional: {a: X}}");
        assert_eq!(text(("Several", "a")), "{several: {a: X}}");
        assert_eq!(text(("KeyedMap", "a")), "{keyed: {p5: {a: X}}}");
        assert_eq!(text(("Of", "a")), "{of: {a: X}}");
        assert_eq!(text(("Of", NO_KEY)), format!("{{of: {{{NO_KEY}: 1}}}}"));
        assert!(!trials.iter().any(|trial| trial.key.0 == "Inner" || trial.key.1 == "elsewhere"));
    }

    #[test]
    #[should_panic(expected = "`Inner` names two tables")]
    fn two_tables_of_one_name_show() {
        let _ = TWO_OF_ONE_NAME.schema("T");
    }

    #[test]
    #[should_panic(expected = "`other` is a key of `Outer`")]
    fn a_key_that_is_read_and_in_no_table_shows() {
        flags(&mut Reader::default(), &crate::yaml::map([]), &["other"]);
    }

    #[test]
    fn the_schema_has_the_keys_of_the_tables() {
        let schema = OUTER.schema("T");
        assert_eq!(schema["properties"]["read"]["type"], "boolean");
        assert_eq!(schema["properties"]["inner"]["additionalProperties"]["$ref"], "#/$defs/Inner");
        assert_eq!(schema["$defs"]["Inner"]["required"], serde_json::json!(["deep"]));
        assert_eq!(
            schema["$defs"]["Inner"]["properties"]["deep"]["description"],
            "A key that must be there."
        );
    }
}
