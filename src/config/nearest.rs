//! "Did you mean": the known name that a mistyped one is nearest to.

/// The name most like `text`, if one is so near that it was probably meant.
pub(crate) fn nearest<'a>(text: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let text = text.to_lowercase();
    let likeness = |name: &str| strsim::normalized_damerau_levenshtein(&text, &name.to_lowercase());
    let scored = names.into_iter().map(|name| (likeness(name), name));
    let (score, name) = scored.max_by(|(a, _), (b, _)| a.total_cmp(b))?;
    (score >= 0.6).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_name_finds_its_neighbour_and_a_strange_one_finds_none() {
        let names = ["batch_size", "batch_bytes", "workers"];
        for (text, expected) in [
            ("batch_sise", Some("batch_size")),
            ("batchsize", Some("batch_size")),
            ("worker", Some("workers")),
            ("BATCH_BYTE", Some("batch_bytes")),
            ("colour", None),
        ] {
            assert_eq!(nearest(text, names), expected, "{text}");
        }
    }
}
