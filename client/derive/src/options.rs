//! The attribute `#[outbox(..)]`.

use proc_macro2::Span;
use syn::meta::ParseNestedMeta;
use syn::{DeriveInput, Error, LitStr, Path, Result};

/// The options of a struct.
pub struct Options {
    pub aggregate: LitStr,
    /// The name of a field.
    pub key: LitStr,
    pub event: Option<LitStr>,
    pub krate: Option<Path>,
}

impl Options {
    pub fn parse(input: &DeriveInput) -> Result<Options> {
        let (mut aggregate, mut key, mut event, mut krate) = (None, None, None, None);
        let mut last = None;
        for attribute in input.attrs.iter().filter(|attribute| attribute.path().is_ident("outbox")) {
            attribute.parse_nested_meta(|option| {
                if option.path.is_ident("aggregate") {
                    set(&mut aggregate, &option, text)
                } else if option.path.is_ident("key") {
                    set(&mut key, &option, text)
                } else if option.path.is_ident("event") {
                    set(&mut event, &option, text)
                } else if option.path.is_ident("crate") {
                    set(&mut krate, &option, |option| option.value()?.parse::<LitStr>()?.parse::<Path>())
                } else {
                    Err(option
                        .error("unknown option. The options are `aggregate`, `key`, `event` and `crate`"))
                }
            })?;
            last = Some(attribute);
        }
        let Some(last) = last else {
            return Err(missing(
                input.ident.span(),
                "the attribute `#[outbox(aggregate = \"...\", key = \"...\")]` is missing",
            ));
        };
        let span = last.path().get_ident().map_or_else(Span::call_site, syn::Ident::span);
        Ok(Options {
            aggregate: aggregate
                .ok_or_else(|| missing(span, "the option `aggregate = \"...\"` is missing"))?,
            key: key.ok_or_else(|| missing(span, "the option `key = \"...\"` is missing"))?,
            event,
            krate,
        })
    }
}

fn missing(span: Span, what: &str) -> Error {
    Error::new(
        span,
        format!(
            "{what}. `aggregate` is the aggregate type, which determines the topic. `key` is the name of the field with \
             the aggregate id, which becomes the record's key"
        ),
    )
}

fn set<T>(
    slot: &mut Option<T>,
    option: &ParseNestedMeta<'_>,
    parse: impl FnOnce(&ParseNestedMeta<'_>) -> Result<T>,
) -> Result<()> {
    if slot.is_some() {
        return Err(option.error("this option is set twice"));
    }
    *slot = Some(parse(option)?);
    Ok(())
}

/// A text that the outbox accepts: `pg_outbox::enqueue` would reject others at run time.
fn text(option: &ParseNestedMeta<'_>) -> Result<LitStr> {
    let text: LitStr = option.value()?.parse()?;
    match text.value() {
        value if value.is_empty() => Err(Error::new(text.span(), "this text is empty")),
        value if value.contains('\0') => {
            Err(Error::new(text.span(), "PostgreSQL cannot store the character U+0000"))
        }
        _ => Ok(text),
    }
}
