//! Enums that are written as one of a few words.

use super::problem::nearest;

/// Declares enums with the word of each variant.
macro_rules! choices {
    ($($(#[$meta:meta])* pub enum $name:ident { $($(#[$of:meta])* $variant:ident = $word:literal),+ $(,)? })+) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$of])* $variant),+ }

        impl $name {
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Returns the word that is written in the configuration.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::config::choice::NotAChoice;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let found = Self::ALL.iter().copied().find(|choice| choice.as_str().eq_ignore_ascii_case(text));
                found.ok_or_else(|| $crate::config::choice::NotAChoice::new(text, &[$($word),+]))
            }
        }

        $crate::config::text::text!($name: $crate::config::choice::one_of(&[$($word),+]));
        $crate::config::text::serialize_display!($name);

        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string", "enum": [$($word),+] })
            }
        }
    )+};
}
pub(super) use choices;

/// A word that is none of the choices. Case is ignored: `INFO` is `info`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{expected}")]
pub struct NotAChoice {
    expected: String,
}

impl NotAChoice {
    pub(super) fn new(text: &str, words: &[&str]) -> Self {
        let meant = nearest(text, words.iter().copied()).map(|word| format!(" (did you mean `{word}`?)"));
        Self { expected: format!("expected {}{}", one_of(words), meant.unwrap_or_default()) }
    }
}

/// Returns `a, b or c`.
pub(super) fn one_of(words: &[&str]) -> String {
    match words {
        [front @ .., last] if !front.is_empty() => format!("{} or {last}", front.join(", ")),
        _ => words.concat(),
    }
}
