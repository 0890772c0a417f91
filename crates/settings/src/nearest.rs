//! Suggestions for mistyped names.

/// The name that is most similar to `text`, if the user probably meant it.
pub fn nearest<'a>(text: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let text = text.to_lowercase();
    let similarity = |name: &str| strsim::normalized_damerau_levenshtein(&text, &name.to_lowercase());
    let scored = names.into_iter().map(|name| (similarity(name), name));
    let (score, name) = scored.max_by(|(a, _), (b, _)| a.total_cmp(b))?;
    (score >= 0.6).then_some(name)
}
