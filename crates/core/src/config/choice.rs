//! Enums that are written as one of a few words.

use super::problem::nearest;

/// Declares such enums: each variant with its word.
macro_rules! choices {
    ($($(#[$meta:meta])* pub enum $name:ident { $($(#[$of:meta])* $variant:ident = $word:literal),+ $(,)? })+) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$of])* $variant),+ }

        impl $name {
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The word that stands for it in the configuration.
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
            type Err = super::choice::NotAChoice;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                super::choice::choose(text, Self::ALL, |choice| choice.as_str()).ok_or_else(|| {
                    super::choice::NotAChoice::new(text, &[$($word),+])
                })
            }
        }

        impl super::value::Text for $name {
            fn expected() -> String {
                super::choice::one_of(&[$($word),+])
            }

            fn parse(text: &str) -> Result<Self, super::value::Refusal> {
                text.parse().map_err(|error: super::choice::NotAChoice| super::value::Refusal::Because(error.to_string()))
            }

            fn print(&self) -> String {
                self.as_str().to_owned()
            }
        }
    )+};
}
pub(super) use choices;

/// A word that is none of the choices.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{expected}")]
pub struct NotAChoice {
    expected: String,
}

impl NotAChoice {
    pub(super) fn new(text: &str, words: &[&str]) -> Self {
        Self { expected: format!("expected {}{}", one_of(words), meant(text, words)) }
    }
}

fn meant(text: &str, words: &[&str]) -> String {
    nearest(text, words.iter().copied()).map(|word| format!(" (did you mean `{word}`?)")).unwrap_or_default()
}

/// Case is forgiven: `INFO` and `ignore` are what they seem.
pub(super) fn choose<T: Copy>(text: &str, all: &[T], word: impl Fn(T) -> &'static str) -> Option<T> {
    all.iter().copied().find(|choice| word(*choice).eq_ignore_ascii_case(text))
}

/// `a, b or c`.
pub(super) fn one_of(words: &[&str]) -> String {
    match words {
        [front @ .., last] if !front.is_empty() => format!("{} or {last}", front.join(", ")),
        _ => words.concat(),
    }
}
