//! Compares the errors of the compiler with the files next to each program. `TRYBUILD=overwrite` updates them.

#[test]
fn mistakes_do_not_compile_and_the_error_names_the_remedy() {
    trybuild::TestCases::new().compile_fail("tests/errors/*.rs");
}
