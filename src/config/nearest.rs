//! "Did you mean": the known name that a mistyped one is nearest to.

/// The name most like `text`, if one is so near that it was probably meant.
pub(crate) fn nearest<'a>(text: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let text = text.to_lowercase();
    let likeness = |name: &str| strsim::normalized_damerau_levenshtein(&text, &name.to_lowercase());
    let scored = names.into_iter().map(|name| (likeness(name), name));
    let (score, name) = scored.max_by(|(a, _), (b, _)| a.total_cmp(b))?;
    (score >= 0.6).then_some(name)
}
