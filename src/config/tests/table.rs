//! Parsing the name of the outbox table.

use crate::config::{TableName, TableNameError};

fn parsed(text: &str) -> TableName {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn names_are_parsed_as_in_sql() {
    for (text, schema, table) in [
        ("outbox", "public", "outbox"),
        ("app.outbox", "app", "outbox"),
        ("App.OutBox", "app", "outbox"),
        (r#""My Schema"."out""box""#, "My Schema", "out\"box"),
        (r#"app."out.box""#, "app", "out.box"),
        (r#""A".b"#, "A", "b"),
        ("größe.tür", "größe", "tür"),
    ] {
        let name = parsed(text);
        assert_eq!((name.schema(), name.table()), (schema, table), "{text}");
        assert_eq!(parsed(&name.to_string()), name, "{text} printed and parsed again");
    }
}

#[test]
fn invalid_names_are_rejected_with_the_reason() {
    use TableNameError::*;
    let long = "x".repeat(51);
    for (text, error) in [
        ("", Empty("table")),
        ("app.", Empty("table")),
        (".outbox", Empty("schema")),
        (r#""""#, Empty("table")),
        ("a.b.c", TooManyParts),
        ("my-app.outbox", NeedsQuotes('-')),
        ("app.out box", NeedsQuotes(' ')),
        ("1a.outbox", NeedsQuotes('1')),
        (r#""a"b"#, NeedsQuotes('b')),
        (r#""app.outbox"#, Unterminated),
        ("\"a\0b\"", Unsupported("table")),
        ("\"a\nb\".outbox", Unsupported("schema")),
        ("app.a$$b", Unsupported("table")),
        (&*long, TooLong { part: "table", bytes: 51, max: 50 }),
    ] {
        assert_eq!(text.parse::<TableName>(), Err(error), "{text:?}");
    }
}
